"""Runs that nothing can stop, in processes that are left for it; and loops that somebody blocks."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.testapp import async_tasks, fault_tasks

from .harness import SHORT, Database, Journal, Workers, holds_for, not_in_short, until

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

STUCK = 76
LIMITS = {"MAX_RUN_SECONDS": 1.0, "KILL_GRACE_SECONDS": 1.0, "LEASE_SECONDS": 3, "BACKOFF_BASE_SECONDS": 0.2}
UNMOVED = pytest.mark.parametrize(
    "task",
    [async_tasks.hang_once, pytest.param(async_tasks.shield_once, marks=not_in_short)],
    ids=["sync task that never returns", "async task that refuses to be cancelled"],
)


def _attempts(database: Database, job_id: str) -> list[tuple[str, str]]:
    return database.rows(
        "SELECT outcome, failure_class FROM pgqueue_attempt WHERE job_id = %s ORDER BY id", int(job_id)
    )


@UNMOVED
@pytest.mark.case("K04")
def test_a_run_that_nothing_stops_is_settled_when_its_process_is_about_to_end(
    workers: Workers, database: Database, journal: Journal, task: Any
) -> None:
    """Its neighbours finish before, its lease is kept until then, and its next run overlaps with nothing."""
    stuck = task.enqueue(str(journal)).id
    neighbours = [
        kind.using(max_run_seconds=100).enqueue(str(journal), f"neighbour-{number}").id
        for number, kind in enumerate((fault_tasks.wait_for, async_tasks.wait_for_async))
    ]
    worker = workers.start("--concurrency", "3", settings=LIMITS)
    until(lambda: len(journal.starts()) == 3)
    worker.until_says("job.timed_out", f"job={stuck}")
    worker.until_says("worker.stopping reason=stuck")
    until(lambda: journal.events("unmoved"), what="it was interrupted")
    later = fault_tasks.pass_by.enqueue(str(journal), "later").id
    successor = workers.start(settings=LIMITS)
    until(lambda: database.job(later)["state"] == "succeeded", what="the successor runs what is due")
    leases = 1.5 if SHORT else 3
    holds_for(leases * 3, lambda: database.job(stuck)["state"] == "running" and worker.is_alive())
    journal.open()
    assert worker.wait(within_seconds=20) == STUCK
    assert [database.job(id)["state"] for id in neighbours] == ["succeeded", "succeeded"]
    until(lambda: database.are_all("succeeded"))
    assert _attempts(database, stuck) == [("failed", "timeout"), ("succeeded", None)]
    first, second = [event for event in journal.events("start") if event.name == "stuck"]
    assert (first.pid, second.pid) == (worker.pid, successor.pid)
    assert journal.events("overlap") == []
    assert database.rows("SELECT DISTINCT lease_losses FROM pgqueue_job") == [(0,)]
    assert worker.says("job.stuck", f"job={stuck}")
    assert successor.drain() == 0


def test_a_process_with_nothing_but_stuck_threads_is_replaced_within_the_grace(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """Field case L13: as many as there are threads, and work behind them."""
    for number in range(2):
        async_tasks.hang_for_good.enqueue(str(journal), f"stuck-{number}")
    worker = workers.start("--concurrency", "2", settings=LIMITS).until_started()
    until(lambda: len(journal.starts()) == 2)
    began = time.monotonic()
    fault_tasks.pass_by.enqueue(str(journal))
    assert worker.wait(within_seconds=20) == STUCK
    print(f"replaced {time.monotonic() - began:.1f} s after the start of its jobs")
    assert time.monotonic() - began < 1 + 1 + 5
    assert database.states() == {"retrying": 2, "pending": 1}


@pytest.mark.case("K06")
def test_a_side_task_that_swallows_its_cancellation_does_not_keep_a_burst_for_ever(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """The job is not over while it goes on, and its limit and the grace bound the wait."""
    job_id = fault_tasks.leave_a_stubborn_side_task.enqueue(str(journal)).id
    worker = workers.start("--burst", settings=LIMITS)
    assert worker.wait() == STUCK
    assert database.job(job_id)["state"] == "dead"


@not_in_short
def test_a_supervisor_replaces_a_process_that_had_to_be_left(
    workers: Workers, database: Database, journal: Journal
) -> None:
    async_tasks.hang_once.enqueue(str(journal))
    worker = workers.start("--processes", "1", settings=LIMITS)
    until(lambda: database.are_all("succeeded"))
    assert len({event.pid for event in journal.events("start")}) == 2
    assert journal.events("overlap") == []
    worker.until_says("supervisor.child_ended", f"status={STUCK}")
    assert worker.drain() == 0


@pytest.mark.case("J18")
def test_a_blocked_loop_costs_no_lease_and_is_told(workers: Workers, database: Database, journal: Journal) -> None:
    """For three leases, with another worker that would take over."""
    blocking = async_tasks.block_once.enqueue(str(journal), 6.0).id
    neighbour = async_tasks.wait_for_async.enqueue(str(journal), "neighbour").id
    settings = {"LEASE_SECONDS": 2}
    first = workers.start(settings=settings)
    until(lambda: "stuck" in journal.starts())
    second = workers.start(settings=settings)
    until(lambda: journal.events("end"))
    first.until_says("loop.free")
    journal.open()
    until(lambda: database.are_all("succeeded"))
    assert first.log().count("loop.blocked seconds=") == 1
    assert first.says("loop.blocked", f"by=job-{blocking}")
    assert not first.says("takeover")
    assert not second.says("takeover")
    assert sorted(journal.starts()) == ["neighbour", "stuck"]
    assert [database.job(id)["lease_losses"] for id in (blocking, neighbour)] == [0, 0]
    assert [worker.drain() for worker in (first, second)] == [0, 0]


@not_in_short
def test_neighbours_on_a_loop_that_is_blocked_for_good_are_left_to_takeover(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """They cannot end any more, and nobody knows how far they came."""
    neighbour = async_tasks.wait_for_async.using(max_run_seconds=100, priority=1).enqueue(str(journal), "neighbour").id
    worker = workers.start(settings=LIMITS)
    until(journal.starts)
    stuck = async_tasks.block_once.enqueue(str(journal), 100.0).id
    assert worker.wait() == STUCK
    assert database.job(neighbour)["state"] == "running"
    assert _attempts(database, stuck) == [("failed", "timeout")]
    journal.open()
    successor = workers.start(settings=LIMITS)
    until(lambda: database.are_all("succeeded"))
    assert _attempts(database, neighbour) == [("lost", "lease_lost"), ("succeeded", None)]
    assert journal.events("overlap") == []
    assert successor.drain() == 0


TRACED_SETTINGS = """
import sys, threading
from tests.settings import *
threading.set{kind}(lambda *_: None)
"""


@pytest.mark.parametrize("kind", ["trace", pytest.param("profile", marks=not_in_short)])
def test_time_limits_do_not_hang_a_process_that_is_traced(
    workers: Workers, database: Database, journal: Journal, tmp_path: Path, kind: str
) -> None:
    """As under a debugger, coverage or a profiler. In Python 3.11 a run past its limit then has the grace only."""
    (tmp_path / "traced_settings.py").write_text(TRACED_SETTINGS.format(kind=kind))
    worker = workers.start(
        settings={"MAX_RUN_SECONDS": 1.0, "KILL_GRACE_SECONDS": 0.5, "BACKOFF_BASE_SECONDS": 20},
        PYTHONPATH=str(tmp_path),
        DJANGO_SETTINGS_MODULE="traced_settings",
    )
    for number in range(20):
        fault_tasks.pass_by.enqueue(str(journal), f"job-{number}")
    until(lambda: database.are_all("succeeded"), within_seconds=15)
    late = async_tasks.forever.enqueue().id
    worker.until_says("job.timed_out", f"job={late}")
    until(lambda: database.job(late)["state"] == "retrying", within_seconds=15)
    fault_tasks.pass_by.enqueue(str(journal), "after")
    if sys.version_info < (3, 12):
        assert worker.wait() == STUCK
    else:
        until(lambda: "after" in journal.starts(), within_seconds=15)
        assert worker.drain(within_seconds=15) == 0
