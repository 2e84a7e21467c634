"""SIGKILL and SIGSTOP at each moment of a job's life. The moments are forced: a gate in the database or a task
that waits holds the worker where the signal is to find it."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from pgqueue import enqueue_many
from tests.testapp import async_tasks, fault_tasks

from .harness import Database, Journal, WorkerProcess, Workers, not_in_short, until
from .proxy import CLAIM, ENDING, Fault, Proxy

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

SHORT_LEASE = {"LEASE_SECONDS": 3}
CLAIMED = "OLD.state <> 'running' AND NEW.state = 'running'"
SETTLED = "OLD.state = 'running' AND NEW.state <> 'running'"


def finish_with_another(workers: Workers, database: Database) -> WorkerProcess:
    """Let a fresh worker do what is left."""
    other = workers.start(settings=SHORT_LEASE).until_started()
    until(lambda: database.are_all("succeeded"), what=f"everything succeeds: {database.states()}")
    return other


def test_killed_before_the_commit_of_a_claim_leaves_for_the_server_the_job_is_as_before(
    workers: Workers, database: Database, journal: Journal, proxy: Proxy
) -> None:
    job_id = fault_tasks.pass_by.enqueue(str(journal)).id
    plan = proxy.plan(CLAIM, Fault.HOLD)
    worker = workers.start(settings=SHORT_LEASE, url=proxy.url())
    assert plan.happened.wait(60)
    assert database.job(job_id)["state"] == "pending"
    assert worker.kill() == -signal.SIGKILL
    assert database.assert_everything_accounted_for() == {"claimable": 1}
    finish_with_another(workers, database)
    assert journal.starts() == ["job"]
    assert database.job(job_id)["lease_losses"] == 0


@pytest.mark.parametrize("at_commit", [False, True])
def test_killed_during_the_claim_or_its_commit_the_job_is_taken_over(
    workers: Workers, database: Database, journal: Journal, at_commit: bool
) -> None:
    """All of a transaction leaves at once: what the server has got, it does to the end."""
    job_id = fault_tasks.pass_by.enqueue(str(journal)).id
    with database.blocking(CLAIMED, at_commit=at_commit) as gate:
        worker = workers.start(settings=SHORT_LEASE)
        gate.until_reached()
        worker.kill()
        gate.open()
        until(lambda: not database.backends(), what="the server notices")
    # Nobody heard of this claim, yet it stands.
    assert database.job(job_id)["state"] == "running"
    assert set(database.assert_everything_accounted_for()) <= {"leased", "to be taken over"}
    finish_with_another(workers, database)
    assert journal.starts() == ["job"]
    job = database.job(job_id)
    assert (job["lease_losses"], job["attempts"]) == (1, 1)


@not_in_short
def test_killed_with_prefetched_jobs_they_are_taken_over(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """One thread is busy, so that the other claims are held and never started."""
    enqueue_many(fault_tasks.nothing.bind() for _ in range(30))
    worker = workers.start("--concurrency", "1", settings={**SHORT_LEASE, "BATCH_SIZE": 3})
    until(lambda: database.are_all("succeeded"), what="the warm-up: it prefetches only what ends fast")
    enqueue_many(fault_tasks.wait_for.bind(str(journal), f"job-{number}") for number in range(3))
    until(lambda: journal.starts() and database.states().get("running") == 3)
    worker.kill()
    assert set(database.assert_everything_accounted_for()) <= {"leased", "to be taken over"}
    journal.open()
    finish_with_another(workers, database)
    starts = journal.starts()
    assert sorted(set(starts)) == ["job-0", "job-1", "job-2"]
    assert len(starts) == 4
    counts = "SELECT DISTINCT attempts, lease_losses FROM pgqueue_job WHERE task LIKE '%%wait_for'"
    assert database.rows(counts) == [(1, 1)]


def test_killed_during_the_task_it_runs_again_after_the_lease(
    workers: Workers, database: Database, journal: Journal
) -> None:
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    worker = workers.start(settings=SHORT_LEASE)
    until(journal.starts)
    worker.kill()
    journal.open()
    finish_with_another(workers, database)
    assert journal.starts() == ["job", "job"]
    assert len(journal.events("end")) == 1
    job = database.job(job_id)
    assert (job["lease_losses"], job["attempts"]) == (1, 1)


def test_killed_between_the_end_and_the_ending_it_runs_again(
    workers: Workers, database: Database, journal: Journal, proxy: Proxy
) -> None:
    """At least once: the work was done, and no word of it was written."""
    job_id = fault_tasks.pass_by.enqueue(str(journal)).id
    plan = proxy.plan(ENDING, Fault.HOLD)
    worker = workers.start(settings=SHORT_LEASE, url=proxy.url())
    assert plan.happened.wait(60)
    assert journal.starts() == ["job"]
    worker.kill()
    assert database.job(job_id)["state"] == "running"
    finish_with_another(workers, database)
    assert journal.starts() == ["job", "job"]


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(fault_tasks.wait_and_call, marks=not_in_short),
        fault_tasks.wait_and_settle_alone,
        async_tasks.wait_and_call,
        async_tasks.wait_and_settle_alone,
    ],
    ids=["an effect", "settle=each", "an async effect", "async settle=each"],
)
def test_killed_right_after_the_end_of_a_job_that_settles_alone_it_does_not_run_again(
    workers: Workers, database: Database, journal: Journal, task: Any
) -> None:
    """The dispatcher is kept in a claim: an ending that it was to write would wait for that."""
    job_id = task.enqueue(str(journal)).id
    worker = workers.start(settings={**SHORT_LEASE, "CLAIM_TIMEOUT_SECONDS": 60})
    until(journal.starts)
    with database.blocking(CLAIMED) as gate:
        fault_tasks.pass_by.enqueue(str(journal), "other")
        gate.until_reached()
        journal.open()
        until(lambda: database.job(job_id)["state"] == "succeeded", what="it is settled")
        assert not worker.says("database.failed"), "the dispatcher still waits for its claim"
        worker.kill()
        gate.open()
        until(lambda: not database.backends(), what="the server notices")
    finish_with_another(workers, database)
    assert sorted(journal.starts()) == ["job", "other"]
    job = database.job(job_id)
    assert (job["attempts"], job["lease_losses"]) == (1, 0)


@pytest.mark.parametrize("at_commit", [False, True])
def test_killed_during_an_ending_or_its_commit_it_counts(
    workers: Workers, database: Database, journal: Journal, at_commit: bool
) -> None:
    job_id = fault_tasks.pass_by.enqueue(str(journal)).id
    with database.blocking(SETTLED, at_commit=at_commit) as gate:
        worker = workers.start(settings=SHORT_LEASE)
        gate.until_reached()
        worker.kill()
        gate.open()
        until(lambda: not database.backends())
    assert database.job(job_id)["state"] == "succeeded"
    assert journal.starts() == ["job"]


def test_frozen_past_its_lease_a_worker_writes_nothing_and_stops(
    workers: Workers, database: Database, journal: Journal
) -> None:
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    frozen = workers.start(settings=SHORT_LEASE)
    until(journal.starts)
    frozen.send(signal.SIGSTOP)
    journal.open()
    other = finish_with_another(workers, database)
    before = database.job(job_id)
    frozen.send(signal.SIGCONT)
    assert frozen.wait() == 75
    assert frozen.says("ending.refused", f"job={job_id}")
    assert frozen.says("worker.stopping", "leases_ran_out")
    assert database.job(job_id) == before
    assert database.settled_by(job_id) == other.worker_id()
    assert journal.starts() == ["job", "job"]


def test_frozen_past_its_lease_a_worker_claims_nothing_more(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """There is work when it wakes, and it does not know yet what it lost."""
    fault_tasks.wait_for.enqueue(str(journal))
    frozen = workers.start(settings=SHORT_LEASE)
    until(journal.starts)
    frozen.send(signal.SIGSTOP)
    until(lambda: database.value("SELECT lease_until < statement_timestamp() FROM pgqueue_job"))
    for number in range(20):
        fault_tasks.pass_by.enqueue(str(journal), f"later-{number}")
    journal.open()
    frozen.send(signal.SIGCONT)
    assert frozen.wait() == 75
    assert journal.starts() == ["job"]
    finish_with_another(workers, database)


@not_in_short
def test_frozen_while_its_task_runs_the_task_is_told(workers: Workers, database: Database, journal: Journal) -> None:
    job_id = fault_tasks.say_when_lost.enqueue(str(journal)).id
    frozen = workers.start(settings=SHORT_LEASE)
    until(journal.starts)
    frozen.send(signal.SIGSTOP)
    until(lambda: database.value("SELECT lease_until < statement_timestamp() FROM pgqueue_job"))
    other = workers.start(settings=SHORT_LEASE).until_started()
    until(lambda: other.says("takeover", f"job={job_id}"))
    frozen.send(signal.SIGCONT)
    until(lambda: journal.events("lost"))
    frozen.until_says("lease.lost", f"job={job_id}")
    journal.open()
    assert frozen.wait() == 75


@not_in_short
def test_killed_at_the_ending_of_many_nothing_is_lost(
    workers: Workers, database: Database, journal: Journal, proxy: Proxy
) -> None:
    """A batch of endings is all or nothing."""
    for number in range(50):
        fault_tasks.pass_by.enqueue(str(journal), f"job-{number}")
    plan = proxy.plan(ENDING, Fault.HOLD)
    worker = workers.start(settings=SHORT_LEASE, url=proxy.url())
    assert plan.happened.wait(60)
    worker.kill()
    database.assert_everything_accounted_for()
    finish_with_another(workers, database)
    assert sorted(set(journal.starts())) == sorted(f"job-{number}" for number in range(50))
