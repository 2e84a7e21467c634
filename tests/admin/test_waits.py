"""Why a waiting job waits: the same answer on its page, in the list, on the overview and in `pgqueue_status`."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from pgqueue.models import Job, Worker
from pgqueue.protocol.counting import Wait, waits_of
from tests.admin.console import page
from tests.admin.test_overview import look
from tests.admin.test_pages import JOBS, plain
from tests.factories import TASK, JobFactory, LimitFactory, QueueFactory, WorkerFactory, from_now

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def worker() -> None:
    """A live worker that knows the task and takes from every queue."""
    WorkerFactory(tasks=[TASK])


def behind_a_running_one() -> tuple[Job, str]:
    front = JobFactory(running=True, keyed=True)
    return JobFactory(keyed=True), str(front.pk)


def behind_a_strict_one() -> tuple[Job, str]:
    front = JobFactory(strict=True, future=True)
    JobFactory(strict=True, future=True)
    return JobFactory(keyed=True), str(front.pk)


def in_a_paused_queue() -> tuple[Job, str]:
    return JobFactory(queue=QueueFactory(name="mail", paused=True).name), "mail"


def of_a_paused_tenant() -> tuple[Job, str]:
    return JobFactory(tenanted=True), LimitFactory(id="tenant:acme", paused=True).pk


def of_a_full_tenant() -> tuple[Job, str]:
    JobFactory(tenanted=True, running=True)
    return JobFactory(tenanted=True), LimitFactory(id="tenant:acme", max_running=1).pk


def of_a_spent_rate() -> tuple[Job, str]:
    return JobFactory(using=True), LimitFactory(id="resource:printer", spent=True).pk


def of_an_unknown_task() -> tuple[Job, str]:
    return JobFactory(task="gone.task"), "gone.task"


def of_an_unserved_queue() -> tuple[Job, str]:
    Worker.objects.all().delete()
    WorkerFactory(tasks=[TASK], queues=["other"])
    WorkerFactory(tasks=[TASK], excluded_queues=["mail"])
    WorkerFactory(tasks=["another.task"], queues=["mail"])
    WorkerFactory(tasks=["another.task"])
    return JobFactory(queue="mail"), "mail"


def after_a_lost_lease() -> tuple[Job, None]:
    return JobFactory(lane=2, lease_losses=1), None


def of_nothing() -> tuple[Job, None]:
    return JobFactory(), None


CAUSES: dict[str, tuple[Callable[[], tuple[Job, Any]], str, str]] = {
    "key_busy": (behind_a_running_one, "It is behind job #{} of its shard key, which runs.", "job"),
    "key_blocked": (behind_a_strict_one, "It is behind job #{} of its shard key, whose order is strict", "job"),
    "queue_paused": (in_a_paused_queue, "Its queue {} is paused.", "queue"),
    "jobs_paused": (of_a_paused_tenant, "{} is paused.", "limit"),
    "limit_reached": (of_a_full_tenant, "The limit of {} is reached.", "limit"),
    "rate_spent": (of_a_spent_rate, "The rate of {} is used up for now.", "limit"),
    "task_unknown": (of_an_unknown_task, "No live worker knows its task.", ""),
    "queue_unserved": (of_an_unserved_queue, "No live worker that knows its task takes from its queue {}", "queue"),
    "runs_alone": (after_a_lost_lease, "It lost a lease before, so it runs alone: in a process of its own", ""),
    "due": (of_nothing, "Nothing holds it up: the next free worker takes it.", ""),
}


@pytest.mark.case("E01")
@pytest.mark.parametrize("cause", CAUSES)
def test_everybody_says_why_a_due_job_waits(cause: str, operator: Client) -> None:
    make, says, kind = CAUSES[cause]
    job, subject = make()
    says = says.format(subject)
    assert waits_of("default", [job.pk]) == {job.pk: Wait(cause, subject)}
    shown = operator.get(page(job))
    assert says in plain(shown)
    if cause != "due":
        assert says in plain(operator.get(JOBS))
    if kind:
        assert f'href="/admin/pgqueue/{kind}/{subject.replace(":", "_3A")}/change/"' in shown.text
    out = StringIO()
    call_command("pgqueue_status", "--format=json", stdout=out)
    assert f'"name": "{cause}"' in out.getvalue()
    assert cause in plain(look(operator)).partition("What due jobs wait for")[2]


def test_what_is_not_due_says_when(operator: Client) -> None:
    assert "Scheduled for 20" in plain(operator.get(page(JobFactory(future=True))))
    retrying = JobFactory(retrying=True, run_at=from_now(600))
    assert "Next attempt at 20" in plain(operator.get(page(retrying)))
    assert "Nothing holds it up" not in plain(operator.get(page(retrying)))


def test_what_does_not_wait_says_nothing_of_it(operator: Client) -> None:
    rows = [JobFactory(running=True), JobFactory(dead=True), JobFactory(paused=True), JobFactory(unknown=True)]
    assert waits_of("default", [row.pk for row in rows]) == {}
    for row in rows:
        assert "Nothing holds it up" not in plain(operator.get(page(row)))
    assert "What due jobs wait for" not in plain(look(operator))


def test_each_of_a_page_has_its_own_answer(operator: Client) -> None:
    front = [JobFactory(running=True, keyed=True, shard_key=key) for key in "ab"]
    behind = [JobFactory(keyed=True, shard_key=key) for key in "abc"]
    found = waits_of("default", [job.pk for job in behind])
    assert [found[job.pk] for job in behind] == [
        Wait("key_busy", str(front[0].pk)),
        Wait("key_busy", str(front[1].pk)),
        Wait("due", None),
    ]
