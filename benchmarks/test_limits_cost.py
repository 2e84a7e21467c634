"""What limits, turns, keys and rates cost, unused and used: the rate of claims and endings, as a share of plain jobs'.

One session claims batches and completes them; the variants take turns, round by round, so that whatever else goes on
falls on all of them. `make bench ARGS="-k cost"`.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psycopg
import pytest

from pgqueue.protocol.claiming import Claimant, Turn, claim
from pgqueue.protocol.connecting import connect
from pgqueue.protocol.settling import Ending, EndingKind, settle
from pgqueue.states import Lane

pytestmark = [pytest.mark.bench, pytest.mark.django_db(transaction=True)]

SHORT = bool(os.environ.get("PGQUEUE_SHORT"))
ROUNDS = 1 if SHORT else 7
JOBS = 500 if SHORT else 3_000
BATCH = 100
TASK = "bench.task"
WORKER = 1


@dataclass(frozen=True)
class Variant:
    """Jobs of one kind: what their columns hold, by number `n`, and which limits there are."""

    name: str
    lane: Lane = Lane.PLAIN
    columns: dict[str, str] = field(default_factory=dict)
    limits: dict[str, str] = field(default_factory=dict)


VARIANTS = (
    Variant("plain"),
    Variant("plain, others are limited", limits={"tenant:acme": "max_running = 3", "queue:other": "max_running = 3"}),
    Variant("plain, ten tasks", columns={"task": "'bench.task' || n % 10"}),
    Variant("plain, ten queues", columns={"queue": "'queue' || n % 10"}),
    Variant("plain, ten priorities", columns={"priority": "n % 10"}),
    Variant("unique key", columns={"unique_key": "'key' || n"}),
    Variant("queue with a limit", lane=Lane.BOUND, limits={"queue:default": "max_running = 100000"}),
    Variant("task with a limit", lane=Lane.BOUND, limits={f"task:{TASK}": "max_running = 100000"}),
    Variant(
        "resource with a limit",
        lane=Lane.LANED,
        columns={"resource": "'printer'"},
        limits={"resource:printer": "max_running = 100000"},
    ),
    Variant("one tenant", lane=Lane.LANED, columns={"tenant": "'acme'"}),
    Variant(
        "one tenant with a limit",
        lane=Lane.LANED,
        columns={"tenant": "'acme'"},
        limits={"tenant:acme": "max_running = 100000"},
    ),
    Variant(
        "one tenant with a rate",
        lane=Lane.LANED,
        columns={"tenant": "'acme'"},
        limits={"tenant:acme": "rate_per_second = 1e9, burst = 1000000, tokens = 1000000, refilled_at = now()"},
    ),
    Variant("a hundred tenants", lane=Lane.LANED, columns={"tenant": "'tenant' || n % 100"}),
    Variant("a key each", lane=Lane.LANED, columns={"shard_key": "'key' || n"}),
    Variant("a key each, strict", lane=Lane.LANED, columns={"shard_key": "'key' || n", "blocks_key": "true"}),
)


def fill(connection: psycopg.Connection[Any], variant: Variant, jobs: int) -> None:
    """Empty the tables, and insert the variant's jobs."""
    connection.execute("TRUNCATE pgqueue_job, pgqueue_limit, pgqueue_attempt")
    for id, bounds in variant.limits.items():
        connection.execute("INSERT INTO pgqueue_limit (id, version, created_at, weight) VALUES (%s, 1, now(), 1)", [id])
        connection.execute(f"UPDATE pgqueue_limit SET {bounds} WHERE id = %s", [id])
    columns = {"task": f"'{TASK}'", "queue": "'default'", "priority": "0", **variant.columns}
    connection.execute(
        f"""
        INSERT INTO pgqueue_job (
            fence, version, created_at, run_at, lane, attempts, max_attempts, lease_losses, unknown_effects,
            state, recovery, stage, {", ".join(columns)}
        )
        SELECT 0, 1, now(), now(), {0 if variant.lane is Lane.BOUND else int(variant.lane)}, 0, 8, 0, 0, 'pending',
            'undeclared', 'not_called', {", ".join(columns.values())}
        FROM generate_series(1, {jobs}) AS n
        """
    )
    connection.execute("VACUUM ANALYZE pgqueue_job")


def drain(connection: psycopg.Connection[Any], variant: Variant) -> float:
    """Claim and complete all there is; return the seconds it took."""
    tasks = (TASK, *(f"{TASK}{number}" for number in range(10)))
    claimant, turn = Claimant(worker_id=WORKER, tasks=tasks, lease_seconds=60.0), Turn()
    began = time.monotonic()
    while leases := claim(connection, claimant, lane=variant.lane, limit=BATCH, turn=turn):
        endings = [Ending(EndingKind.COMPLETE, lease.id, lease.fence, run_seconds=0.0) for lease in leases]
        settle(connection, worker_id=WORKER, endings=endings)
    return time.monotonic() - began


@pytest.fixture
def opened(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    with connect("default", role="bench") as connection:
        yield connection


def test_cost_of_each_feature(opened: psycopg.Connection[Any]) -> None:
    rates: dict[str, list[float]] = {variant.name: [] for variant in VARIANTS}
    for variant in VARIANTS:
        fill(opened, variant, BATCH)
        drain(opened, variant)
    for _ in range(ROUNDS):
        plain = 0.0
        for variant in VARIANTS:
            fill(opened, variant, JOBS)
            rate = JOBS / drain(opened, variant)
            plain = plain or rate
            rates[variant.name].append(rate / plain)
            left = opened.execute("SELECT count(*) FROM pgqueue_job WHERE state <> 'succeeded'").fetchone()
            assert left == (0,), f"{left} jobs of {variant.name} were left"
    print(f"\n{ROUNDS} rounds, {JOBS} jobs, batches of {BATCH}; share of the plain rate")
    for name, shares in rates.items():
        print(f"{name:32} {statistics.median(shares):6.2f}   ({min(shares):.2f} to {max(shares):.2f})")
