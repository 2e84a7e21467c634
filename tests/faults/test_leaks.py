"""Ten thousand jobs through one worker leave nothing behind in it (field case J19)."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgqueue import enqueue_many
from tests.testapp import fault_tasks

from .harness import SHORT, Database, WorkerProcess, Workers, until

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

JOBS = 3_000 if SHORT else 10_000
WARM_UP = 1_000
MOST_GROWTH_KB = 4_096


def resident_kb(worker: WorkerProcess) -> int:
    return _status(worker, "VmRSS")


def threads(worker: WorkerProcess) -> int:
    return _status(worker, "Threads")


def _status(worker: WorkerProcess, name: str) -> int:
    lines = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def sessions(database: Database) -> int:
    return int(database.value("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"))


@pytest.mark.parametrize("debug", ["0", "1"], ids=["plain", "DEBUG"])
def test_memory_threads_and_connections_are_level(workers: Workers, database: Database, debug: str) -> None:
    worker = workers.start(PGQUEUE_TEST_DEBUG=debug).until_started()
    run(database, WARM_UP)
    before = (resident_kb(worker), threads(worker), sessions(database))
    run(database, JOBS - WARM_UP)
    after = (resident_kb(worker), threads(worker), sessions(database))
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
