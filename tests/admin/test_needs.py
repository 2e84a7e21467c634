"""What needs a person, numbers that say what they are, and queues that nobody has named."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pgqueue.admin.needs import rows_words
from pgqueue.models import Queue
from pgqueue.protocol import surveying
from tests.admin.console import REASON, confirm_url
from tests.admin.test_overview import look
from tests.admin.test_pages import JOBS, numbers, plain
from tests.factories import JobFactory, QueueFactory, WorkerFactory, from_now
from tests.races.rows import add_jobs

pytestmark = pytest.mark.django_db
QUEUES = "/admin/pgqueue/queue/"


def needs(client: Client) -> list[str]:
    return [str(need["text"]) for need in look(client).context["needs"]]


# -- rows that nobody can take over -------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_session_that_keeps_a_lost_job_from_its_takeover_is_named(operator: Client, open_connection: Any) -> None:
    job = JobFactory(running=True, lease_until=from_now(-600))
    other = open_connection()
    with other.transaction():
        other.execute("SELECT 1 FROM pgqueue_job WHERE id = %s FOR UPDATE", [job.id])
        (need,) = [need for need in look(operator).context["needs"] if f"job {job.id} " in str(need["text"])]
    pid = other.info.backend_pid
    assert need["text"] == (
        f"The lease of job {job.id} ran out 10 min ago, and no worker can take it over: session {pid} of role "
        f"{other.info.user} (idle in transaction) holds its row. End that session: SELECT pg_terminate_backend({pid})."
    )
    assert need["url"].endswith(f"/job/{job.id}/change/")
    assert not [need for need in needs(operator) if "takeover" in need]


# -- workers ------------------------------------------------------------------------------------------------


def test_jobs_that_wait_for_a_worker_that_is_not_there_need_a_person(operator: Client) -> None:
    JobFactory(future=True)
    assert needs(operator) == []
    add_jobs(2)
    assert needs(operator) == ["No worker is alive: 2 jobs wait. Start one: manage.py runworker."]
    WorkerFactory(stopped_at=from_now(-5))
    assert len(needs(operator)) == 1
    WorkerFactory()
    assert needs(operator) == []


def test_a_silent_worker_is_missed_until_somebody_is_in_its_place(operator: Client) -> None:
    worker = WorkerFactory(heartbeat_at=from_now(-74), queues=["mail"])
    WorkerFactory(started_at=from_now(-600), queues=["mail"])
    WorkerFactory(started_at=from_now(-5))
    (said,) = needs(operator)
    assert said.startswith(f"Worker {worker.pk} on host-1 has been silent for 7")
    assert "No other worker has started after it was last heard and takes from just the same queues" in said
    WorkerFactory(started_at=from_now(-5), queues=["mail"])
    assert needs(operator) == []


def test_a_silent_worker_that_holds_jobs_is_told_however_many_replaced_it(operator: Client) -> None:
    worker = WorkerFactory(heartbeat_at=from_now(-7200), pid=811)
    WorkerFactory()
    assert needs(operator) == []
    JobFactory(running=True, worker_id=worker.pk, lease_until=from_now(-60))
    (said,) = needs(operator)
    assert re.search(r"Leases it holds: 1; the first ran out 6\d s ago\. A worker that is alive takes its", said)
    assert "whether process 811 hangs or is gone" in said


def test_a_worker_that_fell_silent_long_ago_and_holds_nothing_is_history(operator: Client) -> None:
    WorkerFactory(heartbeat_at=from_now(-3590))
    assert len(needs(operator)) == 1
    WorkerFactory(heartbeat_at=from_now(-3610))
    assert len(needs(operator)) == 1


# -- how many rows ------------------------------------------------------------------------------------------


def test_few_rows_are_counted_and_many_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    add_jobs(4, succeeded=True)
    assert surveying.live("default").table_rows == 4
    monkeypatch.setattr(surveying, "COUNTED_AT_MOST", 2)
    assert surveying.live("default").table_rows == 3
    monkeypatch.setattr(surveying, "COUNTED_BYTES", -1)
    assert surveying.live("default").table_rows is None


@pytest.mark.parametrize(
    ("rows", "estimate", "says"),
    [
        (0, None, "0"),
        (827, 5, "827"),
        (10_000, None, "10,000"),
        (10_001, 9_812_345, "~ 9,812,345 (estimate)"),
        (10_001, None, "≥ 10,000"),
        (10_001, 12, "≥ 10,000"),
        (None, 9_812_345, "~ 9,812,345 (estimate)"),
        (None, None, "not known yet"),
        (None, 12, "not known yet"),
    ],
)
def test_an_estimate_is_marked_and_never_shown_for_a_small_number(
    rows: int | None, estimate: int | None, says: str
) -> None:
    live = replace(surveying.live("default"), table_rows=rows, table_estimate=estimate)
    assert rows_words(live) == says


# -- queues without a row -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "traits",
    [
        {},
        {"future": True},
        {"retrying": True},
        {"running": True},
        {"tenant": "acme", "lane": 1},
        {"lane": 2, "lease_losses": 1},
    ],
    ids=str,
)
def test_a_queue_with_jobs_and_without_a_row_is_listed_and_can_be_paused(
    traits: dict[str, Any], operator: Client
) -> None:
    QueueFactory(name="mail")
    JobFactory(queue="mail")
    JobFactory(queue="a/b", **traits)
    answer = operator.get(QUEUES)
    assert numbers(answer) == ["a/b", "mail"]
    (url,) = re.findall(r'href="([^"]*a_2Fb/change/)"', answer.text)
    said = plain(operator.get(url))
    assert "active" in said
    assert re.search(r"As it was at 20\d\d-", said)
    row = Queue(name="a/b")
    token = operator.get(confirm_url(row, "pause_queue")).context["token"]
    form = {"seen": token, "reason": REASON}
    assert operator.post(confirm_url(row, "pause_queue"), form).status_code == 303
    assert Queue.objects.get(name="a/b").paused_at is not None
    assert numbers(operator.get(QUEUES)) == ["a/b", "mail"]


def test_the_filter_of_jobs_has_every_queue_with_jobs(operator: Client) -> None:
    QueueFactory(name="idle")
    JobFactory(queue="mail")
    JobFactory(queue="tenants", tenant="acme", lane=1)
    JobFactory(queue="now", running=True)
    JobFactory(queue="done", succeeded=True)
    shown = re.findall(r'href="\?queue=(\w+)"', operator.get(JOBS).text)
    assert shown == ["idle", "mail", "now", "tenants"]


def test_queues_behind_a_million_jobs_of_another_are_found(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveying, "COUNTED_AT_MOST", 2)
    add_jobs(9, queue="big")
    JobFactory(queue="small")
    answer = operator.get(QUEUES)
    assert numbers(answer) == ["big", "small"]
    assert re.search(r"small active ≥ 0", plain(answer))
    monkeypatch.setattr(surveying, "QUEUES_AT_MOST", 1)
    assert numbers(operator.get(QUEUES)) == ["big"]


def test_queues_without_a_row_stand_on_the_first_page_alone(operator: Client) -> None:
    QueueFactory.create_batch(60)
    JobFactory(queue="zzz")
    first = operator.get(QUEUES)
    second = operator.get(QUEUES + first.context["cl"].older_url)
    assert len(numbers(first)) == 51
    assert "zzz" in numbers(first)
    assert len(numbers(second)) == 10
    assert "zzz" not in numbers(second)


def test_the_pages_of_queues_and_jobs_take_two_or_three_queries_each(operator: Client) -> None:
    JobFactory(queue="mail")
    QueueFactory()
    # Only a list with due jobs asks why they wait.
    for url, asked in ((QUEUES, 2), (JOBS, 3), (f"{JOBS}?state=dead", 2)):
        with CaptureQueriesContext(connection) as queries:
            operator.get(url)
        assert len([query for query in queries if "pgqueue_" in query["sql"]]) == asked, url
