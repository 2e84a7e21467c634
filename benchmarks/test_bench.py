"""What the queue reaches, as ratios to raw SQL in the same run: `make bench`, or `make bench SHORT=1` for the shape.

The raw side sends the shipped statements by themselves, so a ratio says what the worker and Django add. Absolute
figures stand beside it and mean something on a quiet machine only. The table goes to the output; nothing but a
broken shape fails.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection, connections

from pgqueue import enqueue_many
from pgqueue.compat import task_started
from pgqueue.models import Job
from pgqueue.protocol.claiming import Claimant, Turn, claim
from pgqueue.protocol.connecting import connect
from pgqueue.protocol.pipelining import Wish, settle_and_claim
from pgqueue.protocol.settling import Ending, EndingKind
from pgqueue.states import Lane
from pgqueue.worker.inbox import Inbox, Signal
from pgqueue.worker.options import Options
from pgqueue.worker.process import _run
from pgqueue.worker.recycling import resident_mb
from tests.inline import as_in_a_web_process, work
from tests.testapp.contract_tasks import commit_nothing, nothing

SHORT = bool(os.environ.get("PGQUEUE_SHORT"))
ROUNDS = 1 if SHORT else 3
JOBS = 4_000 if SHORT else 50_000
SINGLES = 200 if SHORT else 2_000
COMMITS = 400 if SHORT else 10_000
SAMPLES = 20 if SHORT else 100
RETAINED = 20_000 if SHORT else 1_000_000
BATCH = 500
CLAIMANT = Claimant(worker_id=1, tasks=(nothing.module_path,), lease_seconds=60.0)

pytestmark = [pytest.mark.bench, pytest.mark.django_db(transaction=True)]

FILL = """
    INSERT INTO pgqueue_job (created_at, run_at, settled_by, fence, version, started_at, finished_at, priority, lane,
        attempts, max_attempts, lease_losses, unknown_effects, state, queue, task, recovery, stage)
    SELECT now(), now() + %(due_in)s::interval, NULL, 0, 1, NULL, CASE WHEN %(state)s = 'succeeded' THEN now() END,
        %(priority)s, 0, 0, 8, 0, 0, %(state)s, 'default', %(task)s, %(recovery)s, 'not_called'
    FROM generate_series(1, %(count)s)
"""
FACTS = {"state": "pending", "due_in": "0", "priority": 0, "task": nothing.module_path, "recovery": "undeclared"}
NARROW = (
    """CREATE TABLE bench_narrow (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, version int NOT NULL DEFAULT 0,
        status smallint NOT NULL DEFAULT 0, run_at timestamptz NOT NULL DEFAULT now(), worker int,
        task text NOT NULL, args jsonb NOT NULL)""",
    "CREATE INDEX ON bench_narrow (run_at, id) WHERE status = 0",
)
INSERT_ONE = "INSERT INTO bench_narrow (task, args) VALUES (%s, %s)"
INSERT_MANY = "INSERT INTO bench_narrow (task, args) SELECT * FROM unnest(%s::text[], %s::jsonb[]) RETURNING id"
UPDATE_ONE = "UPDATE bench_narrow SET status = 2 WHERE id = %s AND version = 0 AND status = 0"


def fill(count: int, **facts: Any) -> None:
    """Write rows as they stand in a table that has been in use."""
    facts = {**FACTS, "count": count, **facts}
    with connection.cursor() as cursor:
        cursor.execute(FILL, facts)
        cursor.execute("VACUUM ANALYZE pgqueue_job")


def say(name: str, unit: str, ours: float, raw: float | None = None) -> None:
    """Print one line of the table."""
    ratio = "" if raw is None else f"{raw:12,.2f} {ours / raw:8.2f}"
    print(f"{name:<44} {ours:12,.2f} {ratio} {unit}")


def rate(count: int, act: Callable[[], Any]) -> float:
    """Return how many a second."""
    began = time.perf_counter()
    act()
    return count / (time.perf_counter() - began)


def median_of(measure: Callable[[], float]) -> float:
    """Return the median of all rounds."""
    return statistics.median(measure() for _ in range(ROUNDS))


@pytest.fixture
def raw(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the queue's own, for the statements by themselves."""
    with connect("default", role="bench") as opened:
        yield opened


@pytest.fixture
def narrow(raw: psycopg.Connection[Any]) -> Iterator[psycopg.Connection[Any]]:
    """The same with a table that has what a claim must have, and nothing else: the least that a queue can write."""
    for statement in NARROW:
        raw.execute(statement)
    yield raw
    raw.execute("DROP TABLE bench_narrow")


def drain_raw(raw: psycopg.Connection[Any]) -> None:
    """Claim and complete by the shipped statements, in batches, with nothing in between."""
    endings: list[Ending] = []
    while True:
        wishes = [Wish(CLAIMANT, BATCH, Turn())]
        _, [haul] = settle_and_claim(raw, worker_id=1, endings=endings, wishes=wishes)
        leases = haul.read()
        endings = [Ending(EndingKind.COMPLETE, lease.id, lease.fence) for lease in leases]
        if not leases:
            return


def test_drain(raw: psycopg.Connection[Any]) -> None:
    def ours() -> float:
        fill(JOBS)
        return rate(JOBS, work)

    def alone() -> float:
        fill(JOBS)
        return rate(JOBS, lambda: drain_raw(raw))

    say("drain, one worker process", "jobs/s", median_of(ours), median_of(alone))
    assert not Job.objects.exclude(state="succeeded").exists()


def test_drain_when_a_receiver_listens(raw: psycopg.Connection[Any]) -> None:
    heard: list[int] = []

    def receiver(**_: Any) -> None:
        heard.append(1)

    task_started.connect(receiver)
    try:
        fill(JOBS)
        say("drain, with a receiver of task_started", "jobs/s", rate(JOBS, work))
    finally:
        task_started.disconnect(receiver)
    assert len(heard) == JOBS


def commit_each(numbers: range) -> None:
    """Write rows of a narrow table, one commit each, in a process of its own."""
    with connect("default", role="bench") as own:
        for number in numbers:
            own.execute(UPDATE_ONE, [number])


def test_transactional(narrow: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """One commit for each job: four threads of one worker, against four processes that do nothing but commit."""
    monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", None)

    def ours() -> float:
        fill(COMMITS, task=commit_nothing.module_path, recovery="transactional")
        return rate(COMMITS, lambda: work(concurrency=4))

    def alone() -> float:
        narrow.execute("TRUNCATE bench_narrow RESTART IDENTITY")
        narrow.execute(INSERT_MANY, [["noop"] * COMMITS, ["{}"] * COMMITS])
        narrow.execute("VACUUM ANALYZE bench_narrow")
        own = [fork.Process(target=commit_each, args=(range(n, COMMITS + 1, 4),)) for n in range(1, 5)]

        def together() -> None:
            for process in own:
                process.start()
            for process in own:
                process.join()

        return rate(COMMITS, together)

    fork = multiprocessing.get_context("fork")
    say("transactional, 4 threads", "jobs/s", median_of(ours), median_of(alone))
    assert not Job.objects.exclude(state="succeeded").exists()


def test_enqueue(narrow: psycopg.Connection[Any]) -> None:
    def insert() -> None:
        for _ in range(SINGLES):
            narrow.execute(INSERT_ONE, ["noop", "{}"])

    def ours() -> None:
        for _ in range(SINGLES):
            nothing.enqueue()

    with as_in_a_web_process():
        quick, plain = median_of(lambda: rate(SINGLES, ours)), median_of(lambda: rate(SINGLES, insert))
    say("enqueue, one by one", "jobs/s", quick, plain)


def test_enqueue_many(narrow: psycopg.Connection[Any]) -> None:
    def ours() -> None:
        for _ in range(JOBS // 1000):
            enqueue_many([nothing.bind()] * 1000)

    def insert() -> None:
        for _ in range(JOBS // 1000):
            narrow.execute(INSERT_MANY, [["noop"] * 1000, ["{}"] * 1000]).fetchall()

    say(
        "enqueue_many, 1,000 a call",
        "jobs/s",
        median_of(lambda: rate(JOBS, ours)),
        median_of(lambda: rate(JOBS, insert)),
    )


@contextmanager
def worker(**given: Any) -> Iterator[None]:
    """A worker in this process, with a listener, until the block ends."""
    inbox, options = Inbox(), {"alias": "default", "concurrency": 10, "lease_seconds": 60, "poll_seconds": 10, **given}
    thread = threading.Thread(target=_run, args=(Options(**options), inbox))
    thread.start()
    try:
        yield
    finally:
        inbox.put(Signal.STOP)
        thread.join(30)


def test_latency_and_idling(raw: psycopg.Connection[Any]) -> None:
    """From before the enqueue to the receiver of `task_started`, on an idle queue."""
    started = threading.Event()

    def receiver(**_: Any) -> None:
        started.set()

    waits = []
    task_started.connect(receiver)
    try:
        with worker():
            for number in range(SAMPLES + 5):
                time.sleep(0.07)
                started.clear()
                began = time.perf_counter()
                nothing.enqueue()
                assert started.wait(30)
                waits.append((time.perf_counter() - began) * 1000) if number >= 5 else None
            idle_seconds = 5 if SHORT else 30
            before = _transactions(raw)
            time.sleep(idle_seconds)
            idle = (_transactions(raw) - before - 1) * 60 / idle_seconds
    finally:
        task_started.disconnect(receiver)
    waits.sort()
    say("pickup on an idle queue, median", "ms", statistics.median(waits))
    say("pickup on an idle queue, 95 of 100", "ms", waits[int(len(waits) * 0.95)])
    say("transactions of an idle worker", "a minute", idle)


def _transactions(raw: psycopg.Connection[Any]) -> float:
    time.sleep(1.1)  # A session tells its counts once a second.
    query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    row = raw.execute(query).fetchone()
    assert row is not None
    return float(row[0])


def claim_ms(raw: psycopg.Connection[Any], *, limit: int = 100, times: int = 20) -> float:
    """Return the median time of a claim, in milliseconds."""
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        leases = claim(raw, CLAIMANT, lane=Lane.PLAIN, limit=limit)
        spent.append((time.perf_counter() - began) * 1000)
        assert len(leases) == limit
    return statistics.median(spent)


def test_claims_behind_finished_and_future_rows(raw: psycopg.Connection[Any]) -> None:
    fill(10_000)
    claim_ms(raw)
    alone = claim_ms(raw)
    fill(RETAINED, state="succeeded")
    finished = claim_ms(raw)
    say(f"claim of 100 beside {RETAINED:,} finished rows", "ms", finished, alone)
    fill(RETAINED, due_in="7 days", priority=50)
    future = claim_ms(raw)
    say(f"claim of 100 behind {RETAINED:,} future rows", "ms", future, alone)


def test_claims_under_a_held_snapshot(raw: psycopg.Connection[Any]) -> None:
    """Another session reads for as long as it takes: nothing that dies meanwhile can be cleaned away."""
    with connect("default", role="reader") as reader:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT count(*) FROM pgqueue_job")
        fill(JOBS)
        first = rate(2000, lambda: [_claim_and_complete(raw) for _ in range(20)])
        for _ in range((JOBS - 4000) // 500):
            _claim_and_complete(raw, limit=500)
        last = rate(min(2000, JOBS - 2000), lambda: [_claim_and_complete(raw) for _ in range(20)])
        reader.execute("ROLLBACK")
    say(f"claim and complete, {JOBS:,} dead rows later", "jobs/s", last, first)


def _claim_and_complete(raw: psycopg.Connection[Any], *, limit: int = 100) -> None:
    _, [haul] = settle_and_claim(raw, worker_id=1, endings=[], wishes=[Wish(CLAIMANT, limit, Turn())])
    endings = [Ending(EndingKind.COMPLETE, lease.id, lease.fence) for lease in haul.read()]
    settle_and_claim(raw, worker_id=1, endings=endings, wishes=[])


def test_memory(raw: psycopg.Connection[Any]) -> None:
    before = resident_mb()
    for _ in range(1 if SHORT else 5):
        fill(JOBS)
        assert work() == 0
    say("memory that a worker has gained", "MiB", resident_mb() - before)
