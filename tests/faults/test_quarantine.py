"""Jobs that lost a lease run in a process of their own: nothing waits for them, and nothing else dies with them."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from pgqueue import enqueue_many
from pgqueue.states import Lane
from tests.testapp import fault_tasks

from .harness import Database, Journal, WorkerProcess, Workers, not_in_short, until
from .test_losses import make_lost

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

SETTINGS = {"LEASE_SECONDS": 3, "BACKOFF_BASE_SECONDS": 0.1}


def quarantines(worker: WorkerProcess) -> list[int]:
    """Return the pids of all that the worker started, oldest first."""
    return [int(pid) for pid in re.findall(r"quarantine\.started pid=(\d+)", worker.log())]


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return not is_zombie(pid)


def is_zombie(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "Z"


def test_other_work_goes_on_beside_a_lost_job_where_no_process_is_ever_empty(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """Each of three workers has a job of hours, as one that exports has."""
    enqueue_many(fault_tasks.wait_for.bind(str(journal), f"long-{n}") for n in range(3))
    started = [workers.start("--concurrency", "2", "--poll-seconds", "0.2") for _ in range(3)]
    until(lambda: len(journal.starts()) == 3)
    lost = int(fault_tasks.wait_for.enqueue(str(journal), "lost", gate="lost").id)
    until(lambda: "lost" in journal.starts())
    database.rows(
        "UPDATE pgqueue_job SET lane = 2, lease_losses = 1, lease_until = statement_timestamp() - interval '1 s'"
        " WHERE id = %s RETURNING 1",
        lost,
    )

    began, seconds = time.monotonic(), []
    while "lost" not in journal.starts()[4:] or time.monotonic() - began < 4:
        assert time.monotonic() - began < 40
        sent_at = time.monotonic()
        name = f"plain-{len(seconds)}"
        fault_tasks.pass_by.enqueue(str(journal), name)
        until(lambda name=name: name in journal.starts(), what="plain work goes on")
        seconds.append(time.monotonic() - sent_at)
    print(f"{len(seconds)} plain jobs, the longest wait {max(seconds):.2f} s")
    # Claims paused for at least ten seconds where a process had to be empty first.
    assert max(seconds) < 5
    runs = [event.pid for event in journal.events("start") if event.name == "lost"]
    assert runs[-1] in {pid for worker in started for pid in quarantines(worker)}
    journal.open("lost")
    journal.open()
    until(lambda: database.are_all("succeeded"))
    assert [worker.drain() for worker in started] == [0, 0, 0]


def test_jobs_that_end_their_process_cost_supervised_workers_nothing(
    workers: Workers, database: Database, journal: Journal
) -> None:
    poison = enqueue_many(fault_tasks.exit_at_once.bind(str(journal), f"poison-{n}") for n in range(3))
    make_lost(database, poison)
    healthy = enqueue_many(fault_tasks.pass_by.bind(str(journal), f"healthy-{n}") for n in range(20))
    make_lost(database, healthy[:2])
    supervisor = workers.start("--processes", "2", settings=SETTINGS)

    def are_healthy_done() -> bool:
        done = "SELECT count(*) FROM pgqueue_job WHERE id = ANY(%s) AND state = 'succeeded'"
        return database.value(done, healthy) == len(healthy)

    until(are_healthy_done)
    until(lambda: len(journal.events("poison")) >= 2)
    log = supervisor.log()
    assert "child_ended" not in log
    assert set(quarantines(supervisor)) >= {event.pid for event in journal.events("poison")}
    assert "status=3 reason=reload" in log
    assert supervisor.drain() == 0


@not_in_short
def test_a_job_that_kills_its_quarantine_ends_dead_with_the_reason(
    workers: Workers, database: Database, journal: Journal
) -> None:
    killer = enqueue_many([fault_tasks.kill_the_worker.bind(str(journal))])
    make_lost(database, killer)
    settings = {**SETTINGS, "LEASE_SECONDS": 1.5, "MAX_LEASE_LOSSES": 2}
    worker = workers.start("--poll-seconds", "0.2", settings=settings)
    until(lambda: database.are_all("dead"))
    row = database.job(killer[0])
    assert (row["lane"], row["lease_losses"], row["attempts"]) == (Lane.ALONE, 3, 0)
    assert "lost 2 times alone, the limit is 2" in row["last_error"]
    assert len(quarantines(worker)) == 2
    assert worker.says("quarantine.ended", "signal=SIGKILL")
    assert worker.drain() == 0


def start_a_suspect(workers: Workers, database: Database, journal: Journal) -> tuple[WorkerProcess, int, int]:
    """Return a worker whose quarantine runs a job, with the pid of the process and the id of the job."""
    (job_id,) = enqueue_many([fault_tasks.wait_for.bind(str(journal), "suspect")])
    make_lost(database, [job_id])
    worker = workers.start("--poll-seconds", "0.2", settings=SETTINGS).until_started()
    until(lambda: journal.starts() == ["suspect"])
    (event,) = journal.events("start")
    assert event.pid == quarantines(worker)[0] != worker.pid
    return worker, event.pid, job_id


def test_a_quarantine_whose_worker_was_killed_finishes_its_job_and_ends(
    workers: Workers, database: Database, journal: Journal
) -> None:
    worker, pid, job_id = start_a_suspect(workers, database, journal)
    worker.kill()
    until(lambda: worker.says("worker.orphaned", f"pid={pid}"))
    assert exists(pid)
    journal.open()
    until(lambda: database.job(job_id)["state"] == "succeeded")
    until(lambda: not exists(pid))


def test_a_worker_that_drains_waits_for_the_job_in_its_quarantine(
    workers: Workers, database: Database, journal: Journal
) -> None:
    worker, pid, job_id = start_a_suspect(workers, database, journal)
    worker.send(signal.SIGTERM)
    until(lambda: worker.log().count("worker.draining") == 2)
    assert worker.is_alive()
    journal.open()
    assert worker.wait() == 0
    assert database.job(job_id)["state"] == "succeeded"
    assert not exists(pid)


@not_in_short
def test_a_second_signal_leaves_the_quarantine_to_itself(
    workers: Workers, database: Database, journal: Journal
) -> None:
    worker, pid, job_id = start_a_suspect(workers, database, journal)
    worker.send(signal.SIGTERM)
    until(lambda: worker.log().count("worker.draining") == 2)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 1
    assert exists(pid)
    journal.open()
    until(lambda: database.job(job_id)["state"] == "succeeded")
    until(lambda: not exists(pid))


def test_a_job_lost_with_quarantine_and_worker_is_not_charged_and_runs_in_an_empty_worker(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """As when the host is lost, or when the job takes the whole container with it."""
    worker, pid, job_id = start_a_suspect(workers, database, journal)
    worker.kill()
    os.kill(pid, signal.SIGKILL)
    other = workers.start("--poll-seconds", "0.2", settings=SETTINGS).until_started()
    until(lambda: len(journal.starts()) == 2)
    row = database.job(job_id)
    assert (row["lane"], row["lease_losses"], row["state"]) == (Lane.ISOLATED, 1, "running")
    assert journal.events("start")[1].pid == other.pid
    assert quarantines(other) == []
    journal.open()
    until(lambda: database.are_all("succeeded"))
    assert other.drain() == 0


def test_what_nobody_can_claim_does_not_start_one_process_after_the_other(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """Its shard key is busy."""
    fault_tasks.wait_for.using(shard_key="k").enqueue(str(journal), "first")
    worker = workers.start("--poll-seconds", "0.1", settings=SETTINGS)
    until(lambda: journal.starts() == ["first"])
    blocked = enqueue_many([fault_tasks.pass_by.using(shard_key="k").bind(str(journal), "second")])
    make_lost(database, blocked)
    until(lambda: worker.log().count("reason=idle") == 2)
    pauses = [float(pause) for pause in re.findall(r"reason=idle .* pause_seconds=([\d.]+)", worker.log())]
    assert pauses[0] <= 0.5 <= pauses[1]
    journal.open()
    until(lambda: database.are_all("succeeded"))
    assert worker.drain() == 0


@not_in_short
def test_a_frozen_quarantine_is_killed_and_its_worker_can_end(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """As one whose job keeps the interpreter in C: neither the next job nor a drain waits for it for ever."""
    fault_tasks.wait_for.enqueue(str(journal))
    database.connection.execute("UPDATE pgqueue_job SET lane = 2, lease_losses = 1")
    worker = workers.start(settings=SETTINGS)
    until(journal.starts)
    os.kill(journal.events("start")[0].pid, signal.SIGSTOP)
    worker.until_says("quarantine.killing", within_seconds=20)
    until(lambda: len(journal.starts()) == 2)
    os.kill(journal.events("start")[1].pid, signal.SIGSTOP)
    assert worker.drain(within_seconds=20) == 0
