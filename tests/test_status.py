"""Where every unfinished job stands, as an operator or a monitor asks."""

from __future__ import annotations

import json
import re
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from pgqueue.models import Worker
from pgqueue.protocol.counting import count_standing
from pgqueue.states import FINAL, State
from tests.factories import TASK, JobFactory, LimitFactory, QueueFactory, WorkerFactory

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def worker() -> None:
    WorkerFactory(tasks=[TASK])


def counted() -> dict[str, int]:
    return {standing.name: standing.jobs for standing in count_standing("default")}


def status(*arguments: str) -> str:
    out = StringIO()
    call_command("pgqueue_status", *arguments, stdout=out)
    return out.getvalue()


def move(job: object, column: str, seconds: float) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE pgqueue_job SET {column} = statement_timestamp() + make_interval(secs => %s) WHERE id = %s",
            [seconds, job.pk],
        )


def test_every_unfinished_job_is_counted_once() -> None:
    JobFactory()
    move(JobFactory(), "run_at", 3600)
    QueueFactory(name="frozen", paused=True)
    JobFactory(queue="frozen")
    JobFactory(task="gone.task")
    JobFactory(running=True, shard_key="a", lane=1)
    JobFactory(keyed=True, shard_key="a")
    JobFactory(expired=True)
    JobFactory(paused=True)
    JobFactory(unknown=True)
    JobFactory(succeeded=True)
    JobFactory(dead=True)
    assert counted() == {
        "due": 1,
        "scheduled": 1,
        "queue_paused": 1,
        "task_unknown": 1,
        "key_busy": 1,
        "leased": 1,
        "lease_expired": 1,
        "held": 1,
        "needs_a_person": 1,
    }


def test_what_is_blocked_is_counted_by_its_cause() -> None:
    LimitFactory(id="tenant:paused", paused=True)
    LimitFactory(id="tenant:full", max_running=1)
    LimitFactory(id="resource:printer", spent=True)
    JobFactory(tenanted=True, tenant="full", running=True)
    for tenant in ("paused", "full", "free"):
        JobFactory(tenanted=True, tenant=tenant)
    JobFactory(using=True)
    JobFactory(strict=True, future=True)
    JobFactory(keyed=True)
    assert counted() == {
        "due": 1,
        "scheduled": 1,
        "jobs_paused": 1,
        "key_blocked": 1,
        "limit_reached": 1,
        "rate_spent": 1,
        "leased": 1,
    }


@pytest.mark.parametrize("state", [state for state in State if state not in FINAL])
def test_no_unfinished_state_is_left_out(state: State) -> None:
    JobFactory(**({} if state is State.PENDING else {state.value: True}))
    assert sum(counted().values()) == 1


@pytest.mark.case("A05")
def test_expired_leases_are_a_number_of_their_own() -> None:
    for _ in range(3):
        JobFactory(expired=True)
    JobFactory(running=True)
    JobFactory(running=True)
    assert counted() == {"leased": 2, "lease_expired": 3}


@pytest.mark.case("I01")
def test_a_task_that_no_live_worker_knows_is_told_apart() -> None:
    JobFactory(task="shop.tasks.not_deployed_yet")
    assert "1 that no live worker can run" in status()


@pytest.mark.case("A11")
def test_an_old_expired_lease_fails_the_health_check_and_is_named() -> None:
    move(JobFactory(expired=True), "lease_until", -600)
    assert "lease expired" in status("--max-expired-seconds", "3600")
    with pytest.raises(CommandError, match=r"lease expired.*the longest for 60\d s") as failure:
        status("--max-expired-seconds", "60")
    assert failure.value.returncode == 3


def test_a_due_job_that_waits_too_long_fails_the_health_check() -> None:
    move(JobFactory(), "run_at", -600)
    with pytest.raises(CommandError, match="due now") as failure:
        status("--max-due-seconds", "60")
    assert failure.value.returncode == 3


def test_a_failing_check_says_each_thing_once() -> None:
    move(JobFactory(), "run_at", -600)
    out = StringIO()
    with pytest.raises(CommandError) as failure:
        call_command("pgqueue_status", "--max-due-seconds", "60", stdout=out)
    said = str(failure.value)
    assert re.fullmatch(r"due now: the longest for 60\d s, at most 60 s are allowed", said)
    assert said not in out.getvalue()


def test_without_a_live_worker_waiting_jobs_still_fail_the_health_check() -> None:
    Worker.objects.all().delete()
    move(JobFactory(), "run_at", -600)
    with pytest.raises(CommandError, match="no live worker can run") as failure:
        status("--max-due-seconds", "60")
    assert failure.value.returncode == 3


def test_monitors_read_json() -> None:
    JobFactory(paused=True)
    assert json.loads(status("--format=json")) == {"name": "held", "jobs": 1, "overdue_seconds": None}


def test_nothing_to_do_is_said() -> None:
    assert status() == "No unfinished jobs.\n"
    assert status("--format=json") == ""


def test_a_running_job_is_never_overdue_while_its_lease_lasts() -> None:
    JobFactory(running=True)
    [standing] = count_standing("default")
    assert standing.overdue_seconds is None


def test_no_more_rows_are_looked_at_than_the_cap() -> None:
    for _ in range(3):
        JobFactory()
    assert [standing.jobs for standing in count_standing("default", cap=2)] == [2]


def test_a_read_only_database_is_told_beside_the_figures() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL default_transaction_read_only = on")
    out, err = StringIO(), StringIO()
    call_command("pgqueue_status", stdout=out, stderr=err)
    assert out.getvalue() == "No unfinished jobs.\n"
    assert "Database 'default' is read-only" in err.getvalue()
    assert "target_session_attrs" in err.getvalue()
