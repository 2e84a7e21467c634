"""What limits, turns, keys and rates cost, used and unused: the rate of claims and endings, as a share of plain jobs'.

    DATABASE_URL=postgresql://... python -m benchmarks.limits_cost [--rounds 5] [--jobs 3000] [--batch 100]

Needs the migrated tables of a database of its own: it empties them. One session claims batches and completes them; the
variants take turns, round by round, so that whatever else the machine does falls on all of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import django
import psycopg

from pgqueue.protocol.claiming import Claimant, Turn, claim
from pgqueue.protocol.connecting import connect
from pgqueue.protocol.settling import Ending, EndingKind, settle
from pgqueue.states import Lane

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
    Variant("unique key", columns={"unique_key": "'key' || n"}),
    Variant("queue with a limit", lane=Lane.BOUND, limits={"queue:default": "max_running = 100000"}),
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
    columns = {"task": f"'{TASK}'", **variant.columns}
    connection.execute(
        f"""
        INSERT INTO pgqueue_job (
            fence, version, created_at, run_at, priority, lane, attempts, max_attempts, lease_losses, unknown_effects,
            state, queue, recovery, stage, {", ".join(columns)}
        )
        SELECT 0, 1, now(), now(), 0, {0 if variant.lane is Lane.BOUND else int(variant.lane)}, 0, 8, 0, 0, 'pending',
            'default', 'undeclared', 'not_called', {", ".join(columns.values())}
        FROM generate_series(1, {jobs}) AS n
        """
    )
    connection.execute("VACUUM ANALYZE pgqueue_job")


def drain(connection: psycopg.Connection[Any], variant: Variant, batch: int) -> float:
    """Claim and complete all there is; return the seconds it took."""
    tasks = (TASK, *(f"{TASK}{number}" for number in range(10)))
    claimant, turn = Claimant(worker_id=WORKER, tasks=tasks, lease_seconds=60.0), Turn()
    began = time.monotonic()
    while leases := claim(connection, claimant, lane=variant.lane, limit=batch, turn=turn):
        endings = [Ending(EndingKind.COMPLETE, lease.id, lease.fence, run_seconds=0.0) for lease in leases]
        settle(connection, worker_id=WORKER, endings=endings)
    return time.monotonic() - began


def main() -> None:
    """Measure in turn, and print medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=3_000)
    parser.add_argument("--batch", type=int, default=100)
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_project.settings")
    django.setup()
    rates: dict[str, list[float]] = {variant.name: [] for variant in VARIANTS}
    with connect("default", role="bench") as connection:
        for _ in range(options.rounds):
            plain = 0.0
            for variant in VARIANTS:
                fill(connection, variant, options.jobs)
                rate = options.jobs / drain(connection, variant, options.batch)
                plain = plain or rate
                rates[variant.name].append(rate / plain)
                (left,) = connection.execute("SELECT count(*) FROM pgqueue_job WHERE state <> 'succeeded'").fetchone()
                assert left == 0, f"{left} jobs of {variant.name} were left"
    print(f"{options.rounds} rounds, {options.jobs} jobs, batches of {options.batch}; share of the plain rate")
    for name, shares in rates.items():
        print(f"{name:32} {statistics.median(shares):6.2f}   ({min(shares):.2f} to {max(shares):.2f})")


if __name__ == "__main__":
    main()
