"""Many jobs leave nothing behind in the processes that run them (field case J19)."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from pgqueue import enqueue_many
from tests.testapp import fault_tasks

from .harness import SHORT, Database, Workers, until

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

JOBS = 3_000 if SHORT else 10_000
MANY_JOBS = 10_000 if SHORT else 100_000
PORTIONS = 10
WARM_UP = 1_000
MOST_GROWTH_KB = 4_096


def resident_kb(pid: int) -> int:
    return _status(pid, "VmRSS")


def threads(pid: int) -> int:
    return _status(pid, "Threads")


def _status(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def sessions(database: Database) -> int:
    return int(database.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"))


@pytest.mark.parametrize("debug", ["0", "1"], ids=["plain", "DEBUG"])
def test_memory_threads_and_connections_are_level(workers: Workers, database: Database, debug: str) -> None:
    worker = workers.start(PGQUEUE_TEST_DEBUG=debug).until_started()
    run(database, WARM_UP)
    before = (resident_kb(worker.pid), threads(worker.pid), sessions(database))
    run(database, JOBS - WARM_UP)
    after = (resident_kb(worker.pid), threads(worker.pid), sessions(database))
    print(f"kB resident, threads, sessions after {WARM_UP} jobs: {before}; after {JOBS}: {after}")
    assert after[0] - before[0] < MOST_GROWTH_KB
    assert after[1] <= before[1]
    assert after[2] <= before[2] + 2
    assert worker.drain() == 0


def run(database: Database, count: int) -> None:
    """Every tenth asks the database: each of those has a connection of its own, which takes most of the time."""
    tasks = [fault_tasks.ask_the_database] + 9 * [fault_tasks.nothing]
    enqueue_many(tasks[number % 10].bind() for number in range(count))
    until(lambda: database.are_all("succeeded"), within_seconds=240)


def test_two_processes_are_level_under_sync_and_async_jobs(workers: Workers, database: Database) -> None:
    """Of ten jobs five are async; one of either kind asks the database, on a connection of its own."""
    tasks = [fault_tasks.ask_the_database, fault_tasks.ask_the_database_async]
    tasks += 4 * [fault_tasks.nothing, fault_tasks.nothing_async]
    supervisor = workers.start("--processes", "2")
    started = re.compile(r"worker\.started worker=\d+ pid=(\d+)")
    children = until(lambda: pids if len(pids := [int(pid) for pid in started.findall(supervisor.log())]) == 2 else [])
    began = time.monotonic()
    samples = []
    for portion in range(1, PORTIONS + 1):
        enqueue_many(tasks[number % len(tasks)].bind() for number in range(MANY_JOBS // PORTIONS))
        until(lambda n=portion: database.states() == {"succeeded": n * MANY_JOBS // PORTIONS}, within_seconds=240)
        resident = [resident_kb(pid) for pid in children]
        samples.append((sum(resident), sum(map(threads, children)), sessions(database)))
        print(f"{portion * MANY_JOBS // PORTIONS} jobs: kB resident {resident}, threads, sessions {samples[-1][1:]}")
    print(f"{MANY_JOBS / (time.monotonic() - began):.0f} jobs a second")
    warm, last = samples[2], samples[-1]
    assert last[0] - warm[0] < 2 * MOST_GROWTH_KB
    assert last[1] <= warm[1]
    assert last[2] <= warm[2] + 2
    assert supervisor.log().count("worker.started") == 2
    assert database.rows("SELECT DISTINCT attempts, lease_losses FROM pgqueue_job") == [(1, 0)]
    assert supervisor.drain() == 0
