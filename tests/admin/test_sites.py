"""The same console under other settings, other sites, and a lagging replica."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, override_settings

from pgqueue.admin.words import instant
from pgqueue.models import Job
from tests.admin.console import EVERYTHING, audited, client_of, client_with, confirm_url, filled, make, page
from tests.admin.test_verbs import MAKERS, TARGETS
from tests.factories import AttemptFactory, JobFactory, QueueFactory, WorkerFactory

pytestmark = pytest.mark.django_db


class ReplicaRouter:
    """Reads of the queue go to a database that does not exist: whoever follows it fails."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "replica" if model._meta.app_label == "pgqueue" else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "default" if model._meta.app_label == "pgqueue" else None


def click_through(client: Client, verb: str, site: str = "admin") -> Any:
    """Go from the list to the message, as a person does, and return the page that shows it."""
    row = make(verb, TARGETS[verb]["applied"])
    name = type(row)._meta.model_name
    shown = client.get(page(row, site=site).partition(f"/{name}/")[0] + f"/{name}/")
    assert page(row, site=site) in shown.text
    offers = client.get(page(row, site=site)).context["offers"]
    url = next(offer.url for offer in offers if offer.why_not is None and f"/do/{verb}/" in offer.url)
    confirm = client.get(url)
    assert confirm.context["object_url"] == page(row, site=site)
    answer = client.post(url, filled(confirm.context["token"], row))
    shown = Job.objects.latest("id") if verb in MAKERS else row
    assert (answer.status_code, answer.headers["Location"]) == (303, page(shown, site=site))
    end = client.get(answer.headers["Location"])
    assert "done. Audit entry" in end.text
    assert (verb, str(row.pk), "applied") in [told[:3] for told in audited()]
    return end


@pytest.mark.parametrize("verb", TARGETS)
def test_every_verb_can_be_clicked_through(verb: str, operator: Client) -> None:
    click_through(operator, verb)


@pytest.fixture
def atomic_requests() -> Iterator[None]:
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    yield
    connection.settings_dict["ATOMIC_REQUESTS"] = False


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("atomic_requests")
@pytest.mark.parametrize("verb", ["requeue", "break_lease", "pause_queue"])
def test_verbs_commit_by_themselves_under_atomic_requests(verb: str) -> None:
    client = client_with("op1", *EVERYTHING)
    click_through(client, verb)
    row = make(verb, TARGETS[verb]["applied"])
    viewer = client_with("viewer", "view_job", "view_queue")
    assert viewer.post(confirm_url(row, verb), {"reason": "x"}).status_code == 403
    assert audited()[-1] == (verb, str(row.pk), "forbidden", "x")


@pytest.mark.urls("tests.admin.urls")
@pytest.mark.parametrize("verb", TARGETS)
def test_another_site_keeps_its_own_urls(verb: str, operator: Client) -> None:
    end = click_through(operator, verb, site="office")
    links = re.findall(r'<a [^>]*href="(/[^"]*)"', end.text)
    assert len(links) > 5
    assert {link for link in links if not link.startswith("/back/office/")} <= {"/"}


@pytest.mark.urls("tests.admin.urls")
def test_a_site_of_jobs_alone_links_to_nothing_else(operator: Client) -> None:
    row = JobFactory(running=True)
    AttemptFactory(job_id=row.pk)
    shown = operator.get(page(row, site="narrow"))
    assert shown.status_code == 200
    assert "/queue/" not in shown.text
    assert operator.get(page(row, "history", site="narrow")).status_code == 200
    click_through(operator, "hold", site="narrow")


@pytest.mark.urls("tests.admin.urls")
def test_a_page_signed_for_one_site_is_good_on_the_other(operator: Client) -> None:
    row = JobFactory()
    token = operator.get(confirm_url(row, "hold", site="narrow")).context["token"]
    assert operator.post(confirm_url(row, "hold", site="office"), filled(token, row)).status_code == 303


@pytest.mark.parametrize(
    ("aware", "zone"), [(True, "Asia/Shanghai"), (False, "UTC"), (False, "America/St_Johns")], ids=str
)
def test_times_name_the_zone_with_and_without_use_tz(aware: bool, zone: str, operator: Client) -> None:
    with override_settings(USE_TZ=aware, TIME_ZONE=zone):
        row = JobFactory(running=True)
        QueueFactory(paused_for_now=True)
        WorkerFactory()
        for url in (page(row), *(f"/admin/pgqueue/{model}/" for model in ("job", "queue", "worker"))):
            assert operator.get(url).status_code == 200
        shown = instant(row.created_at)
        assert shown in operator.get(page(row)).text
        assert ("UTC" in shown) == (zone == "UTC")
        seconds = connection.cursor().execute(
            "SELECT extract(epoch FROM created_at - %s::timestamp AT TIME ZONE %s) FROM pgqueue_job",
            [shown.rpartition(" ")[0], zone],
        )
        assert 0 <= seconds.fetchone()[0] < 1
        operator.post(confirm_url(row, "ask_to_stop"), filled(token(operator, row), row))
        again = operator.post(confirm_url(row, "ask_to_stop"), filled(token(operator, row), row))
        assert again.status_code == 409
        assert "s left" in operator.get("/admin/pgqueue/job/").text
        click_through(operator, "break_lease")


def token(client: Client, row: Job) -> str:
    """Return what the page to ask the job to stop carries."""
    return str(client.get(confirm_url(row, "ask_to_stop")).context["token"])


@override_settings(DATABASE_ROUTERS=["tests.admin.test_sites.ReplicaRouter"])
@pytest.mark.parametrize("verb", TARGETS)
def test_rows_are_read_where_they_are_written(verb: str) -> None:
    # Test rows themselves are made and read with the router out of the way.
    client = client_of(User.objects.create_superuser("root"))
    with override_settings(DATABASE_ROUTERS=[]):
        row = make(verb, TARGETS[verb]["applied"])
        if isinstance(row, Job):
            AttemptFactory(job_id=row.pk)
    for url in (page(row), confirm_url(row, verb), *(f"/admin/pgqueue/{m}/" for m in ("job", "queue", "worker"))):
        assert client.get(url).status_code == 200
    form = filled(client.get(confirm_url(row, verb)).context["token"], row)
    assert client.post(confirm_url(row, verb), form).status_code == 303
    assert client.get(page(row, "history"), follow=True).status_code == 200
