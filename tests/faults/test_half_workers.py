"""Faults that hit one half of a worker: it goes on whole, or it ends and is replaced."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.testapp import fault_tasks

from .harness import Database, Journal, WorkerProcess, Workers, database_url, holds_for, not_in_short, until
from .proxy import Fault, Proxy

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

UNFIT = 75
ROLE = "pgqueue_test_rotated"
SHORT_LEASE = {"LEASE_SECONDS": 3}
RENEWAL = b"SET lease_until"


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    """A role of a worker's own, which a test can bar from logging in."""
    database.connection.execute(f"DROP ROLE IF EXISTS {ROLE}")
    database.connection.execute(f"CREATE ROLE {ROLE} LOGIN SUPERUSER PASSWORD 'rotated'")
    yield ROLE
    database.terminate(pid for (pid,) in database.rows("SELECT pid FROM pg_stat_activity WHERE usename = %s", ROLE))
    until(lambda: not database.rows("SELECT FROM pg_stat_activity WHERE usename = %s", ROLE))
    database.connection.execute(f"DROP ROLE {ROLE}")


def as_role(role: str) -> str:
    account, _, place = database_url().removeprefix("postgresql://").rpartition("@")
    assert account
    return f"postgresql://{role}:rotated@{place}"


def lose_the_dispatchers_connection(database: Database) -> None:
    database.terminate(database.backends("worker"))


@pytest.mark.parametrize("by_signal", [False, pytest.param(True, marks=not_in_short)], ids=["by itself", "on SIGTERM"])
def test_a_dispatcher_that_gets_no_connection_ends_its_process(
    workers: Workers, database: Database, journal: Journal, role: str, by_signal: bool
) -> None:
    """As when a password is rotated: open connections stay, and none is made. The heartbeat's takes the endings."""
    ids = [fault_tasks.wait_for.enqueue(str(journal), f"job-{number}").id for number in range(4)]
    worker = workers.start(settings=SHORT_LEASE, url=as_role(role))
    until(lambda: len(journal.starts()) == 4 and database.backends("heartbeat"))
    database.connection.execute(f"ALTER ROLE {role} NOLOGIN")
    lose_the_dispatchers_connection(database)
    worker.until_says("database.failed")
    journal.open()
    if by_signal:
        worker.send(signal.SIGTERM)
    status = worker.wait(within_seconds=20)
    assert (status, worker.says("reason=no_connection")) == ((0, False) if by_signal else (UNFIT, True))
    assert [database.job(id)["state"] for id in ids] == ["succeeded"] * 4
    assert len(journal.starts()) == 4


def test_a_process_without_descriptors_ends(workers: Workers, database: Database, journal: Journal) -> None:
    """A task has leaked them all, and the dispatcher loses its connection."""
    fault_tasks.use_up_descriptors.enqueue(str(journal))
    worker = workers.start(settings=SHORT_LEASE)
    until(lambda: journal.starts() and database.backends("heartbeat"))
    journal.open("leak")
    until(lambda: journal.events("full"))
    lose_the_dispatchers_connection(database)
    journal.open()
    assert worker.wait(within_seconds=20) == UNFIT
    assert database.are_all("succeeded"), "the heartbeat's connection took the ending"


def test_an_ending_that_cannot_be_written_keeps_its_job_for_one_more_lease(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """Those of one worker are refused, and its heartbeat gets through. Another takes over; SIGTERM ends the first."""
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    worker = workers.start(settings=SHORT_LEASE)
    until(journal.starts)
    refused = f"OLD.worker_id = {worker.worker_id()} AND NEW.state = 'succeeded'"
    with database.refusing(refused):
        journal.open()
        workers.start(settings=SHORT_LEASE)
        until(lambda: database.are_all("succeeded"))
        job = database.job(job_id)
        # Another has it, or the quarantine of the first: its statements are not refused.
        assert job["settled_by"] != worker.worker_id()
        assert job["lease_losses"] == 1
        assert worker.drain(within_seconds=15) in (0, UNFIT)


def test_one_silent_heartbeat_connection_loses_no_lease(
    workers: Workers, database: Database, journal: Journal, proxy: Proxy
) -> None:
    """Half-open, with a lease of six seconds: there is time for another connection."""
    plan = proxy.plan(RENEWAL, Fault.SILENCE)
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    worker = workers.start(settings={"LEASE_SECONDS": 6}, url=proxy.url())
    assert plan.happened.wait(20)
    renewed = database.job(job_id)["lease_until"]
    worker.until_says("heartbeat.failed")
    until(lambda: database.job(job_id)["lease_until"] > renewed, within_seconds=6)
    journal.open()
    until(lambda: database.are_all("succeeded"))
    assert database.job(job_id)["lease_losses"] == 0
    assert worker.drain() == 0


def frozen_past_its_lease(workers: Workers, database: Database, journal: Journal) -> WorkerProcess:
    worker = workers.start(settings={"LEASE_SECONDS": 2})
    until(journal.starts)
    worker.send(signal.SIGSTOP)
    until(lambda: database.value("SELECT bool_and(lease_until < statement_timestamp()) FROM pgqueue_job"))
    worker.send(signal.SIGCONT)
    return worker


def test_a_lone_worker_that_was_frozen_keeps_the_job_that_it_runs(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """Field case B21: nobody else took it over, so its late ending counts. It is renewed no more."""
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    worker = frozen_past_its_lease(workers, database, journal)
    worker.until_says("worker.stopping", "leases_ran_out")
    holds_for(2, lambda: not worker.says("takeover"), what="it does not take over what it runs")
    expired = "SELECT lease_until < statement_timestamp() FROM pgqueue_job WHERE id = %s"
    assert database.value(expired, int(job_id))
    assert worker.log().count("lease.lost") == 1
    journal.open()
    assert worker.wait() == UNFIT
    job = database.job(job_id)
    assert (job["state"], job["lease_losses"], job["attempts"]) == ("succeeded", 0, 1)
    assert journal.starts() == ["job"]


@not_in_short
def test_another_worker_takes_it_over(workers: Workers, database: Database, journal: Journal) -> None:
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    worker = frozen_past_its_lease(workers, database, journal)
    worker.until_says("worker.stopping", "leases_ran_out")
    other = workers.start(settings=SHORT_LEASE)
    until(lambda: len(journal.starts()) == 2)
    journal.open()
    assert worker.wait() == UNFIT
    until(lambda: database.are_all("succeeded"))
    assert database.settled_by(job_id) == other.worker_id()
    assert worker.says("ending.refused", f"job={job_id}")


def test_a_thread_that_is_gone_leaves_no_job_behind(workers: Workers, database: Database, journal: Journal) -> None:
    """Its run gets an ending, its place another thread, and its process ends: nothing else frees what it held."""
    job_id = fault_tasks.end_the_thread.enqueue(str(journal)).id
    worker = workers.start("--concurrency", "1", settings={"BACKOFF_BASE_SECONDS": 0.1})
    worker.until_says("thread.gone", f"job={job_id}")
    assert worker.wait(within_seconds=15) == UNFIT
    assert worker.says("worker.stopping", "reason=thread_gone")
    [attempt] = database.rows("SELECT outcome, error_class FROM pgqueue_attempt WHERE job_id = %s", int(job_id))
    assert attempt == ("failed", "pgqueue.exceptions.RunGoneError")
    workers.start(settings=SHORT_LEASE)
    until(lambda: database.are_all("succeeded"))
    assert journal.starts() == ["vanish"] * 2


@pytest.mark.parametrize("by_signal", [False, pytest.param(True, marks=not_in_short)], ids=["by itself", "on SIGTERM"])
def test_a_dead_event_loop_ends_its_process(
    workers: Workers, database: Database, journal: Journal, by_signal: bool
) -> None:
    for number in range(5):
        fault_tasks.wait_for_async.enqueue(str(journal), f"async-{number}")
    fault_tasks.wait_for.enqueue(str(journal), "neighbour")
    worker = workers.start()
    until(lambda: len(journal.starts()) == 6)
    fault_tasks.close_the_loops_descriptors.enqueue(str(journal), "selector")
    worker.until_says("loop.died", "running=5")
    if by_signal:
        worker.send(signal.SIGTERM)
    journal.open()
    assert worker.wait(within_seconds=15) == UNFIT
    assert worker.says("worker.stopping", "reason=loop_died")
    assert database.states() == {"succeeded": 2, "retrying": 5}
    errors = database.rows("SELECT DISTINCT error_class FROM pgqueue_attempt WHERE outcome = 'failed'")
    assert errors == [("pgqueue.exceptions.RunGoneError",)]


@not_in_short
def test_a_loop_that_nobody_can_wake_goes_on(workers: Workers, database: Database, journal: Journal) -> None:
    """Only the pair of sockets is gone that other threads wake it by: it looks once a second."""
    worker = workers.start().until_started()
    fault_tasks.close_the_loops_descriptors.enqueue(str(journal), "wakeup")
    until(journal.starts)
    journal.open()
    for number in range(3):
        fault_tasks.wait_for_async.enqueue(str(journal), f"async-{number}")
    until(lambda: database.states() == {"succeeded": 4})
    assert worker.drain() == 0
