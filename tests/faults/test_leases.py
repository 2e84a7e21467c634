"""Leases are kept as long as a task runs, and taken over as soon as they run out."""

from __future__ import annotations

import time

import pytest

from pgqueue import enqueue_many
from tests.testapp import fault_tasks

from .harness import SHORT, Database, Journal, Workers, holds_for, until

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

LEASE_SECONDS = 3
LEASES = 3 if SHORT else 5
SHORT_LEASE = {"LEASE_SECONDS": LEASE_SECONDS}
SETTLED = "OLD.state = 'running' AND NEW.state <> 'running'"


def test_a_lost_job_is_taken_over_while_every_slot_is_busy(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """Field case A04: it needs no slot, and the queue is deep."""
    victim = workers.start("--concurrency", "1", settings={"LEASE_SECONDS": 4})
    lost = fault_tasks.wait_for.enqueue(str(journal), "lost", "never").id
    until(journal.starts)
    busy = workers.start("--concurrency", "2")
    enqueue_many(fault_tasks.wait_for.bind(str(journal), f"long-{n}") for n in range(20))
    until(lambda: len(journal.starts()) == 3)
    victim.kill()
    until(lambda: busy.says("takeover", f"job={lost}"))
    assert database.job(lost)["state"] == "retrying"
    assert len(journal.starts()) == 3
    print(f"taken over {_overdue_seconds(database, lost):.2f} s after the lease ran out")


def _overdue_seconds(database: Database, job_id: str) -> float:
    return float(
        database.value(
            "SELECT extract(epoch FROM ended_at - claimed_at) - 4 FROM pgqueue_attempt WHERE job_id = %s", int(job_id)
        )
    )


def test_a_lease_is_never_near_its_end(workers: Workers, database: Database, journal: Journal) -> None:
    """Field cases B07 and B10: a job some leases long, sampled all the time."""
    job_id = fault_tasks.last_for.enqueue(str(journal), LEASES * LEASE_SECONDS).id
    workers.start(settings=SHORT_LEASE)
    until(journal.starts)
    remaining: list[float] = []
    while not journal.events("end"):
        left = database.value(
            "SELECT extract(epoch FROM lease_until - statement_timestamp()) FROM pgqueue_job"
            " WHERE id = %s AND state = 'running'",
            int(job_id),
        )
        if left is not None:
            remaining.append(float(left))
        time.sleep(LEASE_SECONDS / 20)
    until(lambda: database.are_all("succeeded"))
    print(f"{len(remaining)} samples, from {min(remaining):.2f} to {max(remaining):.2f} s of {LEASE_SECONDS}")
    assert min(remaining) > LEASE_SECONDS / 3
    assert database.job(job_id)["lease_losses"] == 0
    assert journal.starts() == ["job"]


def test_without_heartbeats_nothing_more_is_claimed(workers: Workers, database: Database, journal: Journal) -> None:
    """Field case B25: the table is locked against heartbeats, so that leases cannot be renewed."""
    fault_tasks.wait_for.enqueue(str(journal), "long")
    worker = workers.start(settings={"LEASE_SECONDS": 6, "HEARTBEAT_TIMEOUT_SECONDS": 1})
    until(journal.starts)
    with database.blocking("OLD.state = 'running' AND NEW.state = 'running'"):
        worker.until_says("heartbeat.failed")
        leased = (
            "SELECT extract(epoch FROM lease_until - statement_timestamp()) FROM pgqueue_job WHERE state = 'running'"
        )
        until(lambda: database.value(leased) < 1.5)
        fault_tasks.pass_by.enqueue(str(journal), "late")
        holds_for(1.2, lambda: "late" not in journal.starts(), what="nothing is claimed before the expiry")
        print(f"{database.value(leased):.2f} s left, nothing claimed")
    journal.open()
    workers.start(settings=SHORT_LEASE)
    until(lambda: database.are_all("succeeded"))
    assert worker.drain() in (0, 75)


def test_a_locked_worker_row_does_not_stop_renewals(workers: Workers, database: Database, journal: Journal) -> None:
    """The row is for people: leases do not depend on it."""
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    worker = workers.start(settings=SHORT_LEASE)
    until(journal.starts)
    with database.connection.transaction():
        database.connection.execute("LOCK TABLE pgqueue_worker IN ACCESS EXCLUSIVE MODE")
        first = database.job(job_id)["lease_until"]
        until(lambda: database.value("SELECT clock_timestamp() > %s + interval '4 s'", first))
        assert database.value("SELECT lease_until > clock_timestamp() FROM pgqueue_job WHERE id = %s", int(job_id)), (
            worker.log()
        )
    journal.open()
    until(lambda: database.are_all("succeeded"))
    assert database.job(job_id)["lease_losses"] == 0
    assert worker.drain() == 0


def test_endings_blocked_for_two_leases_are_written_once(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """Field case B23. Other jobs may run meanwhile. The rows are locked against their renewal too."""
    first = fault_tasks.wait_for.enqueue(str(journal), "first").id
    worker = workers.start("--concurrency", "1", settings={**SHORT_LEASE, "CLAIM_TIMEOUT_SECONDS": 1})
    until(journal.starts)
    with database.blocking(SETTLED) as gate:
        journal.open()
        gate.until_reached()
        enqueue_many(fault_tasks.pass_by.bind(str(journal), f"later-{n}") for n in range(5))
        blocked_at = database.value("SELECT statement_timestamp()")
        until(lambda: database.value("SELECT statement_timestamp() > %s + interval '6 s'", blocked_at))
        assert len(journal.starts()) < 6, "claims go on as if nothing were wrong"
    until(lambda: database.job(first)["state"] == "succeeded")
    job = database.job(first)
    assert (job["attempts"], job["lease_losses"]) == (1, 0)
    assert worker.drain() in (0, 75)
    workers.start()
    until(lambda: database.are_all("succeeded"))
    assert journal.starts().count("first") == 1


def break_lease(database: Database, job_id: str, state: str, ended: str = "NULL") -> None:
    """Do what the operator's verb does."""
    database.rows(
        f"UPDATE pgqueue_job SET state = %s, fence = nextval('pgqueue_fence'), version = version + 1, worker_id = NULL,"
        f" lease_until = NULL, run_at = statement_timestamp(), finished_at = {ended} WHERE id = %s RETURNING id",
        state,
        int(job_id),
    )


def test_a_job_claimed_again_by_the_same_worker_keeps_its_new_lease(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """The ending of the old run is refused, and does not end the renewals of the new one."""
    job_id = fault_tasks.wait_for_own_gate.enqueue(str(journal)).id
    worker = workers.start(settings=SHORT_LEASE)
    until(lambda: len(journal.starts()) == 1)
    break_lease(database, job_id, "retrying")
    until(lambda: len(journal.starts()) == 2)
    journal.open("gate-1")
    worker.until_says("ending.refused", f"job={job_id}")
    claimed_at = database.job(job_id)["claimed_at"]
    until(lambda: database.value("SELECT statement_timestamp() > %s + interval '7 s'", claimed_at))
    assert database.job(job_id)["lease_until"] > database.value("SELECT statement_timestamp()")
    journal.open("gate-2")
    until(lambda: database.are_all("succeeded"))
    assert (database.job(job_id)["lease_losses"], len(journal.starts())) == (0, 2)
    assert worker.drain() == 0


def test_a_broken_lease_does_not_stop_its_worker(workers: Workers, database: Database, journal: Journal) -> None:
    """An operator took one job away while it was leased: the process is well, whatever its thread still does."""
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    worker = workers.start(settings=SHORT_LEASE)
    until(journal.starts)
    break_lease(database, job_id, "cancelled", ended="statement_timestamp()")
    worker.until_says("lease.lost", f"job={job_id}")
    holds_for(2 * LEASE_SECONDS, worker.is_alive)
    assert not worker.says("leases_ran_out")
    assert worker.log().count("lease.lost") == 1
    journal.open()
    worker.until_says("ending.refused")
    assert worker.drain() == 0
