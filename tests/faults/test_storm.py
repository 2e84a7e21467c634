"""Many jobs of every policy while workers are killed at random, or while the other side is away for long."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.utils import timezone

from pgqueue import enqueue_many
from pgqueue.models import Queue
from tests.testapp import storm_tasks

from .harness import SHORT, Database, WorkerProcess, Workers, until
from .teller import Teller

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

POLICIES = ("transactional", "idempotent", "probed", "manual", "undeclared")
STORM_SECONDS = 30 if SHORT else 180
JOBS = 60 if SHORT else 200
WORKERS = 3 if SHORT else 4
STORMY = {"LEASE_SECONDS": 4, "CONCURRENCY": 5, "MAX_LEASE_LOSSES": 1000, "BACKOFF_BASE_SECONDS": 0.1}

AWAY_SECONDS = 20 if SHORT else 600
CAP_SECONDS = 5 if SHORT else 30
CALL_SECONDS = 0.1
"""The slowest answer of the provider that comes back."""

ENDED = "state IN ('succeeded', 'dead', 'cancelled') OR (state = 'unknown' AND probe_at IS NULL)"


@pytest.fixture
def teller() -> Iterator[Teller]:
    teller = Teller(slowest_seconds=2.0, hangs_up=0.1)
    yield teller
    teller.leave()


def enqueue_all(url: str, jobs: int, *, over_seconds: float = 0.0) -> dict[int, str]:
    """Enqueue jobs of every policy in turn, due one after the other; return the policy of each."""
    names = [POLICIES[number % len(POLICIES)] for number in range(jobs)]
    now = timezone.now()
    calls = (
        getattr(storm_tasks, name).using(run_after=now + timedelta(seconds=over_seconds * number / jobs)).bind(url)
        for number, name in enumerate(names)
    )
    return dict(zip(enqueue_many(calls), names, strict=True))


def traces(job: int, step: str) -> int:
    """Count what the author's own writes left."""
    return Queue.objects.filter(name__startswith=f"job:{job}:{step}/").count()


class Killer:
    """Kills a random worker now and then, and starts another in its place."""

    def __init__(self, workers: Workers, database: Database) -> None:
        self._workers, self._database = workers, database
        self._random = random.Random(7)
        self._alive: list[WorkerProcess] = [self._start() for _ in range(WORKERS)]
        self.kills = 0
        self.held: set[tuple[int, int]] = set()
        """Job and fence of what the killed were in the middle of."""

    def go_on_for(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(self._random.uniform(0.5, 4.0), left))
            self._kill(self._random.choice(self._alive))

    def _kill(self, worker: WorkerProcess) -> None:
        started = worker.says("worker.started")
        worker.kill()
        self.kills += 1
        if started:
            held = "SELECT id, fence FROM pgqueue_job WHERE state = 'running' AND worker_id = %s"
            self.held |= set(self._database.rows(held, worker.worker_id()))
        self._alive.remove(worker)
        self._alive.append(self._start())

    def _start(self) -> WorkerProcess:
        return self._workers.start(settings=STORMY)


def test_random_kills_of_random_workers(workers: Workers, database: Database, teller: Teller) -> None:
    """Each effect once at most; once, where its job has succeeded; every takeover leaves a trace."""
    teller.come()
    policies = enqueue_all(teller.url, JOBS, over_seconds=STORM_SECONDS * 0.9)
    killer = Killer(workers, database)
    killer.go_on_for(STORM_SECONDS)
    until(lambda: database.value(f"SELECT bool_and({ENDED}) FROM pgqueue_job"), within_seconds=240)
    states = dict(database.rows("SELECT id, state FROM pgqueue_job"))
    for policy in POLICIES:
        ids = [job for job, name in policies.items() if name == policy]
        keys = [f"job:{job}:{step}" for job in ids for step in storm_tasks.STEPS]
        asked, done = sum(teller.requests[key] for key in keys), sum(teller.effects[key] for key in keys)
        print(f"{policy:14} {dict(Counter(states[job] for job in ids))} requests={asked} effects={done}")
    assert [key for key, times in teller.effects.items() if times > 1] == []
    for job, policy in policies.items():
        waits = states[job] == "unknown"
        assert states[job] == "succeeded" or (waits and policy in ("manual", "undeclared")), (job, policy, states[job])
        if policy == "transactional":
            assert traces(job, "row") == 1
            continue
        for step in storm_tasks.STEPS:
            assert waits or teller.effects[f"job:{job}:{step}"] == traces(job, step) == 1, (job, step)
            assert traces(job, step) <= teller.effects[f"job:{job}:{step}"]
    assert_every_takeover_left_a_trace(database, killer)


def assert_every_takeover_left_a_trace(database: Database, killer: Killer) -> None:
    lost = set(database.rows("SELECT job_id, fence FROM pgqueue_attempt WHERE outcome = 'lost'"))
    losses = database.value("SELECT sum(lease_losses) FROM pgqueue_job")
    print(f"{killer.kills} kills in {STORM_SECONDS} s, in the middle of {len(killer.held)} jobs; {losses} lost leases")
    assert losses == len(lost) > 0
    # What the server did after the kill, with what it had been sent, is an ending like any other.
    ended = set(database.rows("SELECT id, fence FROM pgqueue_job WHERE state = 'succeeded'"))
    ended |= set(database.rows("SELECT job_id, fence FROM pgqueue_attempt WHERE outcome <> 'lost'"))
    assert killer.held - lost <= ended
    assert len(killer.held - lost) <= killer.kills


def test_the_other_side_is_away_for_long(workers: Workers, database: Database) -> None:
    """Nobody was asked, so nothing is unknown; back again, all is done within the cap of the backoff and the work."""
    teller = Teller(slowest_seconds=CALL_SECONDS)
    settings = {"BACKOFF_CAP_SECONDS": CAP_SECONDS, "CONCURRENCY": 10}
    ids = enqueue_all(teller.url, 200)
    worker = workers.start(settings=settings)
    worker.until_says("job.failed")
    began = time.monotonic()
    while time.monotonic() - began < AWAY_SECONDS:
        assert database.states().keys() <= {"pending", "running", "retrying"}
        time.sleep(1)
    tried = database.value("SELECT sum(attempts) FROM pgqueue_job")
    teller.come()
    back = time.monotonic()
    until(lambda: database.are_all("succeeded"), within_seconds=10 * CAP_SECONDS)
    seconds = time.monotonic() - back
    worked = len(ids) * len(storm_tasks.STEPS) * CALL_SECONDS / 10
    print(f"away for {AWAY_SECONDS} s: {tried} attempts; {len(ids)} jobs done {seconds:.1f} s after the return")
    assert seconds < CAP_SECONDS + 3 * worked
    assert database.value("SELECT count(*) FROM pgqueue_attempt WHERE outcome = 'unknown'") == 0
    assert database.value("SELECT count(*) FROM pgqueue_job WHERE lease_losses > 0") == 0
    assert set(teller.effects.values()) == set(teller.requests.values()) == {1}
    teller.leave()
    assert worker.drain() == 0
