"""What happens on a PostgreSQL while something else is measured there: sessions, lock waits, growth.

    PGHOST=... PGPORT=... PGUSER=... python benchmarks/beside.py [--every 0.25] [DATABASE ...]

The server is that of the PG* variables, or of DATABASE_URL. Without names, every database but `postgres` and the
templates is watched, from the moment it appears. When it is dropped, and at SIGTERM or SIGINT for those that remain,
its table is printed, with the time of day, so that it can be laid beside what the bench printed. Sessions, waits and
deadlocks are read through one connection to `postgres`. Sizes and rows can only be read inside a database: by a
connection that lasts for one statement, so that nobody who drops the database waits for it, once in two seconds and
when all have left, and only when at least 200 rows were written since the last one: an idle queue is left alone.

It takes about 0.25 % of a core and the server 0.2 %, and for each look at sizes 1 ms and 7 ms (some 60 relations).
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

NAME = "beside"
LOOK_SECONDS = 2.0
WRITTEN = 200
MB = 1024 * 1024
SMALL = 64 * 1024

SAMPLE = """
    SELECT base.oid, base.datname, stat.deadlocks, stat.tup_inserted + stat.tup_updated + stat.tup_deleted,
        seen.name, seen.state, seen.waits_for, seen.sessions
    FROM pg_database AS base
    JOIN pg_stat_database AS stat ON stat.datid = base.oid
    LEFT JOIN (
        SELECT datid, state,
            CASE WHEN backend_type <> 'client backend' THEN backend_type ELSE application_name END AS name,
            CASE WHEN wait_event_type IN ('Lock', 'LWLock') THEN wait_event_type || ' ' || wait_event END AS waits_for,
            count(*) AS sessions
        FROM pg_stat_activity
        WHERE application_name <> 'beside'
        GROUP BY 1, 2, 3, 4
    ) AS seen ON seen.datid = base.oid
    WHERE base.datallowconn AND NOT base.datistemplate AND base.datname <> 'postgres'
"""
# What is stored out of line is counted with its table.
LOOK = """
    SELECT /* the queue harness leaves what says 'unfinished' out of its counts */
        rel.oid, coalesce(owner.oid, rel.oid), rel.relname,
        CASE rel.relkind WHEN 'i' THEN pg_relation_size(rel.oid) ELSE pg_table_size(rel.oid) END,
        pg_stat_get_live_tuples(rel.oid), pg_stat_get_dead_tuples(rel.oid),
        pg_stat_get_tuples_inserted(rel.oid), pg_stat_get_tuples_deleted(rel.oid),
        pg_stat_get_tuples_updated(rel.oid), pg_stat_get_tuples_hot_updated(rel.oid),
        pg_stat_get_autovacuum_count(rel.oid)
    FROM pg_class AS rel
    JOIN pg_namespace AS space ON space.oid = rel.relnamespace
    LEFT JOIN pg_index AS link ON link.indexrelid = rel.oid
    LEFT JOIN pg_class AS owner ON owner.oid = link.indrelid
    WHERE rel.relkind IN ('r', 'm', 'i') AND space.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
"""


@dataclass
class Gauge:
    """How many at once, and for how long: each sample counts for the time since the one before it."""

    most: int = 0
    seconds: float = 0.0

    def add(self, count: int, seconds: float) -> None:
        """Take one sample in."""
        self.most = max(self.most, count)
        self.seconds += count * seconds


@dataclass
class Relation:
    """A table or an index, in bytes; for a table, its rows and counters too."""

    name: str
    table: int
    first: int
    base: tuple[int, ...]
    most: int = 0
    last: int = 0
    live: int = 0
    dead: int = 0
    dead_most: int = 0
    counters: tuple[int, ...] = (0,) * 5

    def see(self, size: int, live: int, dead: int, counters: tuple[int, ...]) -> None:
        """Take one look in."""
        self.last, self.live, self.dead = size, live, dead
        self.most, self.dead_most = max(self.most, size), max(self.dead_most, dead)
        self.counters = tuple(now - then for now, then in zip(counters, self.base, strict=True))


@dataclass
class Lifetime:
    """One database, from its first sample to its last."""

    name: str
    existed: bool
    deadlocks_before: int
    written_before: int
    began: float = field(default_factory=time.time)
    ended: float = 0.0
    samples: int = 0
    looks: int = 0
    looked_at: float = 0.0
    longest_gap: float = 0.0
    deadlocks: int = 0
    sessions: dict[str, Gauge] = field(default_factory=lambda: defaultdict(Gauge))
    states: dict[tuple[str, str], Gauge] = field(default_factory=lambda: defaultdict(Gauge))
    waits: dict[str, Gauge] = field(default_factory=lambda: defaultdict(Gauge))
    relations: dict[int, Relation] = field(default_factory=dict)

    def sample(self, rows: list[Any], elapsed: float) -> None:
        """Take the rows of one sample in."""
        self.samples += 1
        self.ended = time.time()
        self.longest_gap = max(self.longest_gap, elapsed)
        counts: dict[tuple[int, Any], int] = defaultdict(int)
        for _, _, deadlocks, _, name, state, waits_for, sessions in rows:
            self.deadlocks = deadlocks - self.deadlocks_before
            if sessions is None:  # Nobody is there.
                continue
            for each in ("all", name or "(no name)"):
                counts[0, each] += sessions
                counts[1, (each, state)] += sessions
            if waits_for:
                counts[2, waits_for] += sessions
        gauges: tuple[Any, ...] = (self.sessions, self.states, self.waits)
        for (kind, key), count in counts.items():
            gauges[kind][key].add(count, elapsed)

    def due(self, written: int, *, left: bool) -> bool:
        """Say whether sizes are worth a look: now and then while rows are written, and once all have left."""
        if self.existed and not self.looks:
            return True
        rested = left or time.monotonic() - self.looked_at >= LOOK_SECONDS
        return rested and written - self.written_before >= WRITTEN

    def look(self, server: str, written: int) -> None:
        """Read sizes and rows; a database that is just dropped, or locked by a migration, is left alone."""
        self.looked_at, self.written_before = time.monotonic(), written
        try:
            with psycopg.connect(server, dbname=self.name, autocommit=True) as connection:
                rows = connection.execute(LOOK).fetchall()
        except psycopg.Error:
            return
        for oid, table, name, size, live, dead, *counters in rows:
            if oid not in self.relations:
                # What came into being since the start grew from nothing.
                old = self.existed and not self.looks
                self.relations[oid] = Relation(name, table, size if old else 0, tuple(counters) if old else (0,) * 5)
            self.relations[oid].see(size, live, dead, tuple(counters))
        self.looks += 1


def lines(life: Lifetime) -> Iterable[str]:
    """Say what was seen of one database."""
    began, ended = (time.strftime("%H:%M:%S", time.localtime(at)) for at in (life.began, life.ended))
    yield (
        f"-- beside: {life.name} {began} to {ended}, {life.samples} samples, longest gap {life.longest_gap:.2f} s,"
        f" {life.looks} looks at sizes; deadlocks: {life.deadlocks}"
    )
    if not life.sessions and not any(map(written, life.relations.values())):
        yield "   nobody was there, nothing was written"
        return
    heads = f"{'all':>6s} {'active':>7s} {'idle':>6s} {'idle in transaction':>20s} {'mean':>6s}"
    yield f"   {'sessions, most at once':44s} {heads}"
    seconds = max(life.ended - life.began, 0.001)
    for name, gauge in sorted(life.sessions.items()):
        active, idle, inside = (life.states[name, state].most for state in ("active", "idle", "idle in transaction"))
        yield f"   {name[:44]:44s} {gauge.most:6d} {active:7d} {idle:6d} {inside:20d} {gauge.seconds / seconds:6.1f}"
    for kind, said in (("Lock ", "locks"), ("LWLock ", "lightweight locks")):
        waits = [
            f"{event.removeprefix(kind)} {gauge.seconds:.2f} s, most at once {gauge.most}"
            for event, gauge in sorted(life.waits.items())
            if event.startswith(kind)
        ]
        yield f"   sessions waiting for {said}, all their time: {'; '.join(waits) or 'none in any sample'}"
    yield from growth(life)


def written(relation: Relation) -> bool:
    """Say whether it is a table that changed enough to be told of."""
    return sum(relation.counters[:3]) >= WRITTEN


def growth(life: Lifetime) -> Iterable[str]:
    """Say how the tables that were written grew, each with its indexes."""
    yield (
        f"   {'MB of each table and its indexes':44s} {'first':>8s} {'most':>8s} {'last':>8s}"
        f" {'rows':>9s} {'dead':>8s} {'most':>8s} {'updated':>9s} {'HOT %':>6s} {'autovacuums':>11s}"
    )
    told = {oid: each for oid, each in life.relations.items() if written(each)}
    for oid, table in sorted(told.items(), key=lambda item: -item[1].most):
        _, _, updated, hot, autovacuums = table.counters
        share = f"{100 * hot / updated:.1f}" if updated else "-"
        yield (
            f"   {_sizes(table.name, table)} {table.live:9d} {table.dead:8d} {table.dead_most:8d}"
            f" {updated:9d} {share:>6s} {autovacuums:11d}"
        )
        indexes = [each for each in life.relations.values() if each.table == oid and each is not table]
        small = [index for index in indexes if index.most < SMALL]
        for index in indexes:
            if index not in small:
                yield f"   {_sizes('  ' + index.name, index)}"
        if small:
            yield f"     {len(small)} indexes that stayed under {SMALL // 1024} kB"
    rest = [each.last / MB for each in life.relations.values() if each.table not in told]
    yield f"   {len(rest)} others, of tables with fewer than {WRITTEN} rows written: {sum(rest):.2f} MB at last"


def _sizes(name: str, each: Relation) -> str:
    return f"{name[:44]:44s} {each.first / MB:8.2f} {each.most / MB:8.2f} {each.last / MB:8.2f}"


def watch(server: str, *, names: list[str], every: float, stop: threading.Event) -> None:
    """Sample until `stop` is set."""
    lives: dict[int, Lifetime] = {}
    changes: dict[int, int] = {}
    with psycopg.connect(server, dbname="postgres", autocommit=True, prepare_threshold=1) as connection:
        before, existed = time.monotonic(), True
        while not stop.is_set():
            by_database = defaultdict(list)
            for row in connection.execute(SAMPLE):
                if not names or row[1] in names:
                    by_database[row[0]].append(row)
            now = time.monotonic()
            for oid, rows in by_database.items():
                _, name, deadlocks, changes[oid], *_ = rows[0]
                if oid not in lives:
                    lives[oid] = Lifetime(name, existed, deadlocks, changes[oid] if existed else 0)
                lives[oid].sample(rows, now - before)
                if lives[oid].due(changes[oid], left=rows[0][-1] is None):
                    lives[oid].look(server, changes[oid])
            for oid in lives.keys() - by_database.keys():
                say(lives.pop(oid))
            before, existed = now, False
            stop.wait(max(0.0, every - (time.monotonic() - now)))
    for oid, life in lives.items():
        life.look(server, changes[oid])
        say(life)


def say(life: Lifetime) -> None:
    """Print one table in one write: the bench may write to the same file."""
    print("\n".join(lines(life)), flush=True)


def main() -> None:
    """Read the arguments, watch, and say what it cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("databases", nargs="*", metavar="DATABASE", help="Watch only these.")
    parser.add_argument("--every", type=float, default=0.25, metavar="SECONDS", help="Between samples.")
    given = parser.parse_args()
    stop = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    server = make_conninfo(
        os.environ.get("DATABASE_URL", ""),
        application_name=NAME,
        options="-c lock_timeout=100ms -c statement_timeout=5s -c jit=off",
    )
    began, used = time.monotonic(), time.process_time()
    try:
        watch(server, names=given.databases, every=given.every, stop=stop)
    except psycopg.OperationalError as error:
        raise SystemExit(f"beside: {error}") from None
    share = 100 * (time.process_time() - used) / (time.monotonic() - began)
    print(f"-- beside: took {share:.2f} % of a core itself, the server's part not counted", flush=True)


if __name__ == "__main__":
    main()
