"""A job that kills its worker comes to an end, and its neighbours are not charged for it (field case A14)."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from pgqueue import enqueue_many
from tests.testapp import fault_tasks

from .harness import SHORT, Database, Journal, WorkerProcess, Workers, not_in_short, until

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

GOOD = 99 if SHORT else 499
SETTINGS = {"LEASE_SECONDS": 3, "BACKOFF_BASE_SECONDS": 0.1}


class Supervisor:
    """Starts a worker whenever there is none."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self.deaths = 0
        self._worker: WorkerProcess = self._start()

    def _start(self) -> WorkerProcess:
        return self._workers.start(settings=SETTINGS)

    def keep_one(self) -> None:
        if not self._worker.is_alive():
            assert self._worker.wait() == -9
            self.deaths += 1
            self._worker = self._start()

    def stop(self) -> int:
        return self._worker.drain()


def test_a_job_that_kills_its_worker_dies_alone(workers: Workers, database: Database, journal: Journal) -> None:
    """All of them are claimed at once, the killer first."""
    enqueue_many(fault_tasks.nothing.bind() for _ in range(300))
    supervisor = Supervisor(workers)
    until(lambda: database.are_all("succeeded"), what="the warm-up: it prefetches only what ends fast")
    began = time.monotonic()
    calls = [
        fault_tasks.kill_the_worker.bind(str(journal)),
        *(fault_tasks.pass_by.bind(str(journal), f"good-{n}") for n in range(GOOD)),
    ]
    killer, *good = enqueue_many(calls)

    def is_over() -> bool:
        supervisor.keep_one()
        return database.value("SELECT count(*) FROM pgqueue_job WHERE finished_at IS NULL") == 0

    until(lambda: supervisor.keep_one() or supervisor.deaths)
    lost = database.value("SELECT count(*) FROM pgqueue_job WHERE state = 'running'")
    until(is_over, within_seconds=300, what="all is over")
    print(f"{lost} of {GOOD + 1} lost with the first; over after {time.monotonic() - began:.1f} s")

    states = "SELECT DISTINCT state, attempts FROM pgqueue_job WHERE id = ANY(%s)"
    assert database.rows(states, good) == [("succeeded", 1)]
    dead = database.job(killer)
    assert (dead["state"], dead["attempts"], dead["lease_losses"]) == ("dead", 0, 4)
    assert journal.starts().count("killer") == 4
    # After the first time it kills its quarantine only.
    assert supervisor.deaths == 1
    classes = "SELECT DISTINCT outcome, failure_class FROM pgqueue_attempt WHERE job_id = %s"
    assert database.rows(classes, killer) == [("lost", "lease_lost")]
    assert supervisor.stop() == 0


@not_in_short
def test_jobs_that_run_alone_do_not_wait_between_them(workers: Workers, database: Database, journal: Journal) -> None:
    """After each, other work gets as much time as it took; where there is none, a worker must not sleep."""
    ids = enqueue_many(fault_tasks.last_for.bind(str(journal), 0.05, f"job-{n}") for n in range(40))
    make_lost(database, ids)
    worker = workers.start().until_started()
    began = time.monotonic()
    until(lambda: database.are_all("succeeded"))
    seconds = time.monotonic() - began
    print(f"{len(ids)} jobs of 0.05 s alone: {seconds:.1f} s")
    assert seconds < 20
    assert worker.drain() == 0


def test_a_long_job_does_not_keep_the_others_waiting_for_one_that_runs_alone(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """Claims do not wait until a job ends that may run for hours."""
    alone = int(fault_tasks.pass_by.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(str(journal)).id)
    fault_tasks.wait_for.enqueue(str(journal), "long")
    worker = workers.start("--poll-seconds", "0.1")
    until(lambda: journal.starts() == ["long"])
    make_lost(database, [alone])
    # Several looks long: it knows of the lost job by then.
    time.sleep(1)
    fault_tasks.pass_by.enqueue(str(journal), "other")
    began = time.monotonic()
    until(lambda: "other" in journal.starts(), within_seconds=30)
    print(f"claims paused for {time.monotonic() - began:.1f} s more")
    journal.open()
    until(lambda: database.are_all("succeeded"), within_seconds=60)
    assert worker.drain() == 0


def test_jobs_that_end_their_process_do_not_starve_the_others(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """Each process begins with other work: what the one before it owed to others has died with it."""
    poison = enqueue_many(fault_tasks.exit_at_once.bind(str(journal), f"poison-{n}") for n in range(15))
    make_lost(database, poison)
    healthy = enqueue_many(fault_tasks.pass_by.bind(str(journal), f"healthy-{n}") for n in range(20))

    starts = 0
    worker: WorkerProcess | None = None
    while len(journal.starts()) < len(healthy):
        if worker is None or not worker.is_alive():
            starts += 1
            worker = workers.start("--concurrency", "2", settings=SETTINGS)
        time.sleep(0.02)
    print(f"{starts} starts, {len(journal.events('poison'))} of the others had run")
    assert starts <= 3


def make_lost(database: Database, ids: list[int]) -> None:
    """Do what a takeover does to jobs that lost a lease."""
    database.rows(
        "UPDATE pgqueue_job SET lane = 2, lease_losses = 1, state = 'retrying', run_at = statement_timestamp()"
        " WHERE id = ANY(%s) RETURNING id",
        ids,
    )


@not_in_short
def test_a_lost_job_of_an_unknown_task_stops_nobody(workers: Workers, database: Database, journal: Journal) -> None:
    """Nobody here can run it: a worker must not empty itself for it again and again."""
    stranger = int(fault_tasks.nothing.enqueue().id)
    database.rows(
        "UPDATE pgqueue_job SET task = 'elsewhere.tasks.other', lane = 2, lease_losses = 1 WHERE id = %s RETURNING 1",
        stranger,
    )
    enqueue_many(fault_tasks.last_for.bind(str(journal), 2 if n % 4 == 0 else 0.2, f"job-{n}") for n in range(40))
    worker = workers.start("--concurrency", "4").until_started()
    began = time.monotonic()
    until(lambda: database.states() == {"succeeded": 40, "pending": 1}, within_seconds=60)
    print(f"26 s of work on 4 threads: {time.monotonic() - began:.1f} s")
    assert time.monotonic() - began < 14
    assert worker.drain() == 0
