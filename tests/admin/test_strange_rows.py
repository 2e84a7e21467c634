"""Rows that were written by hand with SQL: no page breaks, and a cell that cannot be shown says so."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client, override_settings

from pgqueue.models import Attempt, Job, OperatorAction, Queue
from pgqueue.states import State
from tests.admin.console import confirm_url, filled, page, token_for
from tests.admin.test_pages import JOBS, plain
from tests.factories import (
    BulkActionFactory,
    EffectFactory,
    JobFactory,
    JobPayloadFactory,
    LimitFactory,
    OperatorActionFactory,
    QueueFactory,
    WorkerFactory,
)

pytestmark = pytest.mark.django_db
LISTS = ("overview", "queue", "limit", "job", "reconcile", "worker", "bulkaction", "approvalrequest", "operatoraction")
FAR = (
    "10000-01-01 05:00+00",
    "4713-01-01 00:00+00 BC",
    "infinity",
    "-infinity",
    "9999-12-31 23:59+00",
    "0001-01-01 00:00+00",
)


def by_hand(sql: str, *params: Any) -> None:
    """Write as somebody with a shell does, past every door."""
    with connection.cursor() as cursor:
        cursor.execute(sql, params)


def refuses_no_page(client: Client, *rows: Any) -> str:
    """Open every list and the pages of rows; return all that they say."""
    urls = [f"/admin/pgqueue/{name}/" for name in LISTS] + ["/admin/pgqueue/overview/overview.json"]
    urls += [page(row) for row in rows]
    answers = {url: client.get(url) for url in urls}
    assert {url: answer.status_code for url, answer in answers.items() if answer.status_code != 200} == {}
    return " ".join(plain(answer) for answer in answers.values())


@pytest.mark.parametrize("at", FAR)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/Lima"])
def test_a_job_at_a_time_that_python_does_not_have_breaks_no_page(at: str, zone: str, operator: Client) -> None:
    rows = [JobFactory(), JobFactory(running=True), JobFactory(dead=True), JobFactory(unknown=True)]
    OperatorActionFactory(target_id=str(rows[0].pk))
    every = (
        "created_at",
        "run_at",
        "claimed_at",
        "started_at",
        "finished_at",
        "lease_until",
        "probe_at",
        "replaced_at",
    )
    for column in (*every, "replay_until", "snoozed_until", "purged_at", "stop_requested_at"):
        by_hand(
            f"UPDATE pgqueue_job SET {column} = %s WHERE {column} IS NOT NULL OR %s",
            at,
            column.endswith("until") and column != "lease_until",
        )
    with override_settings(TIME_ZONE=zone):
        said = refuses_no_page(operator, *rows)
    assert "a time that cannot be shown (" in said


@pytest.mark.parametrize("at", FAR)
def test_so_does_no_other_row(at: str, operator: Client) -> None:
    queue, limit, worker = QueueFactory(paused=True), LimitFactory(paused=True), WorkerFactory()
    action, bulk, job = OperatorActionFactory(), BulkActionFactory(), JobFactory(unknown=True)
    EffectFactory(job_id=job.pk, fence=job.fence, past=True)
    by_hand("ALTER TABLE pgqueue_operatoraction DISABLE TRIGGER USER")
    for table, columns in {
        "queue": ("created_at", "paused_at", "paused_until"),
        "limit": ("created_at", "paused_at"),
        "worker": ("started_at", "heartbeat_at"),
        "operatoraction": ("created_at",),
        "bulkaction": ("created_at",),
        "effect": ("called_at",),
    }.items():
        for column in columns:
            by_hand(f"UPDATE pgqueue_{table} SET {column} = %s", at)
    by_hand(
        "INSERT INTO pgqueue_attempt (job_id, fence, ended_at, number, outcome, stage)"
        " VALUES (%s, 1, %s, 1, 'lost', 'not_called')",
        job.pk,
        at,
    )
    refuses_no_page(operator, queue, limit, worker, action, bulk, job)


def test_it_can_be_acted_on(operator: Client) -> None:
    """What has such a time is what an operator comes for."""
    row = JobFactory()
    by_hand("UPDATE pgqueue_job SET run_at = 'infinity', snoozed_until = '10000-01-01'")
    shown = operator.get(confirm_url(row, "cancel"))
    answer = operator.post(confirm_url(row, "cancel"), filled(shown.context["token"], row))
    assert answer.status_code == 303
    assert list(Job.objects.values_list("state", flat=True)) == [State.CANCELLED]
    assert OperatorAction.objects.get().facts["snoozed_until"].startswith("10000-01-01")


def test_a_page_that_refuses_shows_it_too(operator: Client) -> None:
    row = JobFactory()
    by_hand("UPDATE pgqueue_job SET run_at = 'infinity'")
    answer = operator.post(confirm_url(row, "cancel"), filled(token_for(operator, row, "cancel"), row, reason=""))
    assert answer.status_code == 422


def test_an_export_has_what_the_row_holds(operator: Client) -> None:
    JobFactory()
    by_hand("UPDATE pgqueue_job SET run_at = '10000-01-01 05:00+00'")
    answer = operator.post(f"{JOBS}export/", {"format": "csv"})
    assert "10000-01-01 " in answer.getvalue().decode()


def test_names_that_no_door_lets_in_are_shown(operator: Client) -> None:
    names = ["", "x" * 5_000, "a/b", "a\nb", "%00"]
    rows = [JobFactory(queue=name, tenant=name, resource=name, lane=1) for name in names]
    for name in names:
        QueueFactory(name=name, paused=True)
        LimitFactory(id=f"tenant:{name}")
    JobFactory(unknown=True, queue="")
    refuses_no_page(operator, *rows)
    assert operator.get(JOBS, {"queue": "a/b"}).status_code == 200
    assert operator.get(page(Queue(name="a/b"))).status_code == 200
    # Nothing leads to a page that there is not.
    assert "x" * 300 not in operator.get("/admin/pgqueue/queue/").text.replace(">" + "x" * 5_000, "").partition(
        "result_list"
    )[2].replace(f"queue={'x' * 5_000}", "")


def test_words_that_no_release_knows_are_shown_as_they_are(operator: Client) -> None:
    row = JobFactory()
    by_hand("ALTER TABLE pgqueue_job DROP CONSTRAINT pgqueue_job_rules")
    by_hand("UPDATE pgqueue_job SET state = 'odd', recovery = 'strange', stage = 'peculiar', lane = 9")
    action = OperatorActionFactory(verb="juggle", target_kind="moon", target_id="x", outcome="so", state_found="odd")
    said = refuses_no_page(operator, row, action)
    for word in ("odd", "strange", "peculiar", "juggle"):
        assert word in said


def test_json_that_python_cannot_read_is_said(operator: Client) -> None:
    row = JobFactory()
    JobPayloadFactory(job_id=row.pk)
    worker, action = WorkerFactory(), OperatorActionFactory()
    deep = "[" * 3_000 + "]" * 3_000
    by_hand("ALTER TABLE pgqueue_operatoraction DISABLE TRIGGER USER")
    by_hand("UPDATE pgqueue_jobpayload SET args = %s::jsonb, kwargs = %s::jsonb", deep, '{"n": ' + "9" * 6_000 + "}")
    by_hand("UPDATE pgqueue_worker SET tasks = %s::jsonb", deep)
    by_hand("UPDATE pgqueue_operatoraction SET params = %s::jsonb", deep)
    said = refuses_no_page(operator, row, worker, action)
    assert said.count("JSON that cannot be read here") >= 4


def test_an_ordinary_read_is_as_strict_as_before(operator: Client) -> None:
    """The loaders are of the console's reads alone."""
    row = JobFactory()
    operator.get(page(row))
    assert type(Job.objects.get().run_at).__name__ == "datetime"
    by_hand("UPDATE pgqueue_job SET run_at = 'infinity'")
    with pytest.raises(Exception, match="timestamp too large"):
        Job.objects.get()
    assert Attempt.objects.count() == 0
