"""Shard keys on real workers that are killed at random: what the tasks themselves saw, in the order they saw it."""

from __future__ import annotations

import random
import signal
import time
from collections import defaultdict
from collections.abc import Sequence

import pytest

from pgqueue import enqueue_many
from tests.testapp import fault_tasks

from .harness import SHORT, Database, Event, Journal, WorkerProcess, Workers, until

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

KEYS, JOBS, WORKERS, KILLS = (40, 10, 3, 3) if SHORT else (500, 20, 8, 20)
SETTINGS = {"LEASE_SECONDS": 5, "MAX_LEASE_LOSSES": 100}
OPTIONS = ("--concurrency", "8")
TASKS = (fault_tasks.take_turns, fault_tasks.take_turns_strictly)


def test_jobs_of_a_key_run_one_at_a_time_and_in_order_whoever_fails_or_is_killed(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """Every other key is strict: nothing starts before all older ones of it have succeeded."""
    began, chance = time.monotonic(), random.Random(3)
    running = [workers.start(*OPTIONS, settings=SETTINGS) for _ in range(WORKERS)]
    for worker in running:
        worker.until_started()
    enqueue_many(
        TASKS[key % 2].using(shard_key=f"key{key}").bind(str(journal), f"{key}:{number}")
        for number in range(JOBS)
        for key in range(KEYS)
    )
    for kill in range(1, KILLS + 1):
        # Spread over the work: the next one dies when its share of the jobs is done.
        share = KEYS * JOBS * kill // (KILLS + 1)
        until(lambda share=share: count_done(database) >= share, within_seconds=240, what=f"{share} jobs are done")
        place = chance.randrange(WORKERS)
        kill_and_note(running[place], journal)
        running[place] = workers.start(*OPTIONS, settings=SETTINGS)
    until(lambda: count_done(database) == KEYS * JOBS, within_seconds=240, what="all is done")
    took = time.monotonic() - began
    events = journal.events()
    starts = [event.name for event in events if event.kind == "start"]
    print(f"{KEYS} keys, {JOBS} jobs each, {WORKERS} workers, {KILLS} kills: {took:.0f} s, {len(starts)} starts")
    assert database.states() == {"succeeded": KEYS * JOBS}
    assert overlaps(events) == []
    for key, numbers in by_key(starts).items():
        first_starts = list(dict.fromkeys(numbers))
        assert first_starts == list(range(JOBS)), f"key {key}: {numbers}"
        assert key % 2 == 0 or numbers == sorted(numbers), f"key {key} is strict: {numbers}"


def count_done(database: Database) -> int:
    return database.value("SELECT count(*) FROM pgqueue_job WHERE state = 'succeeded'")


def kill_and_note(worker: WorkerProcess, journal: Journal) -> None:
    assert worker.kill() == -signal.SIGKILL
    fault_tasks.note(str(journal), "killed", str(worker.pid))


def by_key(names: Sequence[str]) -> dict[int, list[int]]:
    """Return the numbers of the jobs by their key, in the order given."""
    found = defaultdict(list)
    for name in names:
        key, number = map(int, name.split(":"))
        found[key].append(number)
    return found


def overlaps(events: Sequence[Event]) -> list[tuple[Event, Event]]:
    """Return each start in a key while another job of it ran, in a process that was alive."""
    running: dict[str, Event] = {}
    found = []
    for event in events:
        if event.kind == "killed":
            running = {key: other for key, other in running.items() if str(other.pid) != event.name}
            continue
        key = event.name.partition(":")[0]
        if event.kind == "start":
            found += [(running[key], event)] if key in running else []
            running[key] = event
        elif running.get(key) and running[key].pid == event.pid:
            del running[key]
    return found
