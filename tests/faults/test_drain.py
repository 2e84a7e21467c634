"""SIGTERM and SIGINT: the first drains, the second leaves at once."""

from __future__ import annotations

import signal
import time

import pytest

from pgqueue import enqueue_many
from pgqueue.operations import Actor, act
from tests.testapp import fault_tasks

from .harness import SHORT, Database, Journal, Workers, holds_for, until
from .proxy import Proxy

pytestmark = pytest.mark.django_db(transaction=True)

TERM, INT = signal.SIGTERM, signal.SIGINT


@pytest.mark.faults
@pytest.mark.parametrize("number", [TERM] if SHORT else [TERM, INT])
def test_running_jobs_finish_and_the_others_are_given_back(
    workers: Workers, database: Database, journal: Journal, number: signal.Signals
) -> None:
    """The drain lasts longer than the lease (field case B02)."""
    enqueue_many(fault_tasks.nothing.bind() for _ in range(30))
    draining = workers.start("--concurrency", "1", settings={"LEASE_SECONDS": 3})
    until(lambda: database.are_all("succeeded"), what="the warm-up: it prefetches only what ends fast")
    running, *others = enqueue_many(fault_tasks.wait_for.bind(str(journal), f"job-{n}", f"gate-{n}") for n in range(3))
    until(lambda: journal.starts() and database.states().get("running") == 3)
    draining.send(number)
    until(lambda: database.states().get("pending") == 2, what="the prefetched jobs are given back")
    assert [database.job(id)["attempts"] for id in others] == [0, 0]
    second = workers.start()
    until(lambda: len(journal.starts()) == 3, what="another worker runs what was given back")
    claimed_at = database.job(running)["claimed_at"]
    until(lambda: database.value("SELECT statement_timestamp() > %s + interval '6 s'", claimed_at))
    assert database.job(running)["lease_until"] > database.value("SELECT statement_timestamp()")
    for n in range(3):
        journal.open(f"gate-{n}")
    assert draining.wait() == 0
    until(lambda: database.are_all("succeeded"))
    assert sorted(journal.starts()) == ["job-0", "job-1", "job-2"]
    assert database.rows("SELECT DISTINCT attempts, lease_losses FROM pgqueue_job") == [(1, 0)]
    assert second.drain() == 0


def test_a_worker_that_is_asked_to_drain_ends_when_its_jobs_have_ended(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """The request reaches it with a heartbeat; nothing is claimed from then on, and it ends as after SIGTERM."""
    first = fault_tasks.wait_for.enqueue(str(journal), "first", "gate")
    worker = workers.start("--concurrency", "1", settings={"LEASE_SECONDS": 3})
    until(lambda: journal.starts() == ["first"])
    id, version = database.rows("SELECT id, version FROM pgqueue_worker")[0]
    ada = Actor(id="1", name="ada")
    asked = act("drain_worker", id, version_seen=version, actor=ada, reason="the host is replaced")
    assert (asked.outcome, asked.state_after) == ("applied", "draining")
    until(lambda: database.value("SELECT draining FROM pgqueue_worker"), what="it hears of it")
    second = fault_tasks.wait_for.enqueue(str(journal), "second", "gate")
    again = act("drain_worker", id, version_seen=version + 1, actor=ada, reason="again")
    assert (again.outcome, again.state_found) == ("refused_state", "draining")
    journal.open("gate")
    assert worker.wait() == 0
    assert database.job(first.id)["state"] == "succeeded"
    assert (database.job(second.id)["state"], journal.starts()) == ("pending", ["first"])
    assert database.value("SELECT stopped_at IS NOT NULL FROM pgqueue_worker")


def test_a_frozen_worker_is_forgotten_once_it_holds_nothing_and_is_there_again_when_it_wakes(
    workers: Workers, database: Database
) -> None:
    worker = workers.start(settings={"LEASE_SECONDS": 3})
    until(lambda: database.value("SELECT count(*) FROM pgqueue_worker") == 1)
    worker.send(signal.SIGSTOP)
    until(lambda: database.value("SELECT heartbeat_at < statement_timestamp() - interval '4 s' FROM pgqueue_worker"))
    id = database.value("SELECT id FROM pgqueue_worker")
    gone = act("forget_worker", id, version_seen=1, actor=Actor(id="1", name="ada"), reason="its host is gone")
    assert (gone.outcome, gone.state_found, gone.state_after) == ("applied", "silent", "stopped")
    worker.send(signal.SIGCONT)
    until(lambda: database.value("SELECT stopped_at IS NULL FROM pgqueue_worker"), what="its next heartbeat")
    assert worker.drain() == 0


@pytest.mark.case("K01")
@pytest.mark.parametrize("number", [TERM, INT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_during_the_start_is_not_lost(
    workers: Workers, database: Database, journal: Journal, number: signal.Signals
) -> None:
    """The worker is held while it imports the tasks: after its handlers, before its first claim."""
    fault_tasks.pass_by.enqueue(str(journal))
    worker = workers.start(PGQUEUE_TEST_HOLD_IMPORT=str(journal))
    until(lambda: journal.events("importing"))
    worker.send(number)
    journal.open("import")
    assert worker.wait(within_seconds=20) == 0
    assert database.are_all("pending")


@pytest.mark.faults
@pytest.mark.parametrize("milliseconds", [0, 200] if SHORT else [0, 10, 50, 200, 500])
def test_a_signal_any_time_after_the_start_ends_it(
    workers: Workers, database: Database, journal: Journal, milliseconds: int
) -> None:
    """Before Python has come to the handlers, the signal ends it the plain way: nothing is claimed then."""
    fault_tasks.pass_by.enqueue(str(journal))
    early = workers.start()
    time.sleep(milliseconds / 1000)
    held = workers.start(PGQUEUE_TEST_HOLD_IMPORT=str(journal))
    assert early.drain(within_seconds=20) in (0, -TERM)
    database.assert_everything_accounted_for()
    assert database.states().get("running") is None
    until(lambda: journal.events("importing"))
    journal.open("import")
    time.sleep(milliseconds / 1000)
    assert held.drain(within_seconds=20) == 0
    assert database.states().get("running") is None
    assert len(journal.starts()) == database.states().get("succeeded", 0)


@pytest.mark.faults
@pytest.mark.case("K07")
@pytest.mark.case("K09")
@pytest.mark.parametrize(("first", "second"), [(TERM, INT)] if SHORT else [(TERM, TERM), (INT, INT), (TERM, INT)])
def test_a_second_signal_leaves_at_once(
    workers: Workers, database: Database, journal: Journal, first: signal.Signals, second: signal.Signals
) -> None:
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    worker = workers.start(settings={"LEASE_SECONDS": 2})
    until(journal.starts)
    worker.send(first)
    worker.until_says("worker.draining")
    worker.send(second)
    assert worker.wait() == 1
    assert database.job(job_id)["state"] == "running"
    journal.open()
    other = workers.start()
    until(lambda: database.are_all("succeeded"), what="the lease runs out and the job is taken over")
    assert database.job(job_id)["lease_losses"] == 1
    assert other.drain() == 0


@pytest.mark.case("K09")
def test_a_closed_terminal_ends_it_like_a_kill(workers: Workers, database: Database, journal: Journal) -> None:
    """SIGHUP is not handled: whoever starts it from a terminal and leaves does not want it to go on."""
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    worker = workers.start(settings={"LEASE_SECONDS": 2})
    until(journal.starts)
    worker.send(signal.SIGHUP)
    assert worker.wait() == -signal.SIGHUP
    assert database.job(job_id)["state"] == "running"
    journal.open()
    assert workers.start("--poll-seconds", "1").until_started()
    until(lambda: database.are_all("succeeded"), what="the lease runs out and the job is taken over")


def test_an_idle_worker_stops_though_its_server_is_away(workers: Workers, database: Database, proxy: Proxy) -> None:
    worker = workers.start(url=proxy.url()).until_started()
    proxy.refuse()
    proxy.reset_all()
    worker.until_says("failed")
    assert worker.drain(within_seconds=20) == 0


@pytest.mark.faults
def test_a_drain_without_a_server_ends_when_the_leases_do(
    workers: Workers, database: Database, journal: Journal, proxy: Proxy
) -> None:
    """What ended and could not be written is taken over (field case B23)."""
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    worker = workers.start(url=proxy.url(), settings={"LEASE_SECONDS": 3})
    until(journal.starts)
    proxy.refuse()
    proxy.reset_all()
    worker.send(TERM)
    worker.until_says("worker.draining")
    holds_for(1, worker.is_alive, what="the job still runs")
    journal.open()
    assert worker.wait(within_seconds=20) == 75
    assert worker.says("endings_unwritten")
    assert database.job(job_id)["state"] == "running"
    workers.start()
    until(lambda: database.are_all("succeeded"))


@pytest.mark.faults
def test_an_idle_worker_ends_at_once(workers: Workers, database: Database) -> None:
    """Nothing is left to do but to close connections. A thread that slept on would take a second each time."""
    fastest = min(_seconds_to_end(workers, database) for _ in range(3))
    print(f"gone after {1000 * fastest:.0f} ms")
    assert fastest < 0.5


def _seconds_to_end(workers: Workers, database: Database) -> float:
    worker = workers.start(settings={"LISTEN": False}).until_started()
    until(lambda: database.value("SELECT count(*) FROM pgqueue_worker WHERE stopped_at IS NULL") == 1)
    time.sleep(0.3)
    began = time.monotonic()
    assert worker.drain() == 0
    return time.monotonic() - began
