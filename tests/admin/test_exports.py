"""Lists as files: who may have them, what is in them, and that it is on record."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from django.test import Client

from pgqueue.exporting import written
from pgqueue.models import OperatorAction
from tests.admin.conftest import VIEWS
from tests.admin.console import checksums, client_with
from tests.admin.test_pages import JOBS, numbers
from tests.factories import JobFactory, JobPayloadFactory, OperatorActionFactory
from tests.races.rows import add_jobs

pytestmark = pytest.mark.django_db
EXPORT = f"{JOBS}export/"


@pytest.fixture
def auditor(db: None) -> Client:
    """Somebody who may look, and take lists away."""
    return client_with("auditor", *VIEWS, "export_job")


def rows(answer: Any) -> list[dict[str, str]]:
    """Read a CSV."""
    assert answer.status_code == 200
    return list(csv.DictReader(io.StringIO(b"".join(answer.streaming_content).decode())))


def test_an_export_has_what_the_filter_finds_over_all_pages(auditor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = [job.pk for job in add_jobs(120, dead=True)]
    JobFactory()
    monkeypatch.setattr("pgqueue.exporting.pages.__kwdefaults__", {"size": 50})
    found = rows(auditor.post(f"{EXPORT}?state=dead", {"format": "csv"}))
    assert [int(row["id"]) for row in found] == sorted(dead, reverse=True)
    assert found[0]["state"] == "dead"
    assert "T" in found[0]["finished_at"]
    audited = OperatorAction.objects.get()
    assert (audited.verb, audited.outcome, audited.actor_name) == ("export", "applied", "auditor")
    assert audited.params["filter"] == "state=dead"
    assert numbers(auditor.get("/admin/pgqueue/operatoraction/")) == [audited.pk]


def test_an_export_stops_at_its_cap(auditor: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    add_jobs(30)
    monkeypatch.setattr("pgqueue.exporting.MOST_ROWS", 25)
    assert len(rows(auditor.post(EXPORT, {"format": "csv"}))) == 25


def test_arguments_are_exported_to_whoever_may_see_them(auditor: Client, operator: Client) -> None:
    job = JobFactory()
    JobPayloadFactory(job_id=job.pk, args=["secret"], kwargs={"card": 4711})
    hidden = b"".join(auditor.post(EXPORT, {"format": "ndjson"}).streaming_content).decode()
    assert "secret" not in hidden
    assert "args" not in hidden
    may = client_with("op3", *VIEWS, "export_job", "view_job_args")
    (line,) = b"".join(may.post(EXPORT, {"format": "ndjson"}).streaming_content).decode().splitlines()
    assert json.loads(line)["kwargs"] == {"card": 4711}


@pytest.mark.parametrize("url", [EXPORT, "/admin/pgqueue/operatoraction/export/"])
def test_who_may_not_export_is_refused_and_it_is_on_record(url: str, viewer: Client) -> None:
    JobFactory(dead=True)
    assert "Take this list away" not in viewer.get(url.removesuffix("export/")).text
    assert viewer.post(url, {"format": "csv"}).status_code == 403
    assert OperatorAction.objects.values_list("verb", "outcome").get() == ("export", "forbidden")


def test_nothing_is_exported_by_a_get_or_by_a_search_that_was_not_understood(auditor: Client) -> None:
    JobFactory()
    before = checksums()
    assert auditor.get(EXPORT).status_code == 405
    assert auditor.post(f"{EXPORT}?q=free+text").status_code == 302
    assert checksums() == before


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
def test_no_cell_is_a_formula(first: str) -> None:
    (line,) = list(csv.reader(written(iter([{"a": f"{first}1+1", "b": "", "c": -3}]), "abc", format="csv")))[1:]
    assert line == [f"'{first}1+1", "", "-3"]


def test_the_audit_log_is_exported_without_formulas(auditor: Client) -> None:
    OperatorActionFactory(reason='=HYPERLINK("http://x")', version_seen=-3)
    (row,) = [row for row in rows(auditor.post("/admin/pgqueue/operatoraction/export/")) if row["verb"] != "export"]
    assert row["reason"] == '\'=HYPERLINK("http://x")'
    assert row["version_seen"] == "-3"
