"""A storm on limits, watched from outside: what was committed, in the order of the commits.

    python benchmarks/limits_storm.py [--seconds 60] [--sessions 10]

Tenants with limits of 1, 3 and 20, and shard keys; sessions that claim, complete, fail, release and are killed at any
moment; leases of a second, and takeovers. The checker reads the server's logical decoding. It may never see more jobs
of a tenant running than its limit, nor two of a key, nor that a slot of a tenant was free, a job of it due and none
started for longer than a worker sleeps between two looks without LISTEN and then takes for a claim. Ends with status 1
if it did, if the server's log has an error that no kill explains, or if there was no storm.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import re
import sys
import threading
import time
from collections import Counter, defaultdict
from datetime import datetime
from typing import Any

import django
import psycopg
from django.core.management import call_command

from demo_project.postgres import start
from pgqueue import conf
from pgqueue.failures import Description, FailureClass
from pgqueue.protocol.claiming import Claimant, Turn, claim
from pgqueue.protocol.connecting import connect
from pgqueue.protocol.settling import Ending, EndingKind, Failure, settle
from pgqueue.states import Lane
from pgqueue.takeover import take_over_expired

LIMITS = {"one": 1, "three": 3, "twenty": 20}
TASK = "storm.task"
JOBS_PER_SECOND = 500
"""More than the slots let through: there is always work that waits."""
KEYS = 25
RUN_SECONDS = 0.15
SLOT = "pgqueue_storm"


def logical_server() -> Any:
    """Start a server whose log of changes can be decoded."""
    server = start("storm", fsync=False)
    with psycopg.connect(server.url, autocommit=True) as connection:
        (level,) = connection.execute("SHOW wal_level").fetchone() or ("",)
        connection.execute("ALTER SYSTEM SET wal_level = 'logical'")
    if level == "logical":
        return server
    server.stop()
    return start("storm", fsync=False)


def prepare(url: str, jobs: int) -> None:
    """Make the tables anew, limits and jobs."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", [SLOT]
        )
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    call_command("migrate", verbosity=0, interactive=False)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [SLOT])
        for tenant, limit in LIMITS.items():
            connection.execute(
                "INSERT INTO pgqueue_limit (id, version, created_at, max_running, weight) VALUES (%s, 1, now(), %s, 1)",
                [f"tenant:{tenant}", limit],
            )
        connection.execute(
            "INSERT INTO pgqueue_job (fence, version, created_at, run_at, priority, lane, attempts, max_attempts,"
            " lease_losses, unknown_effects, state, queue, task, recovery, stage, tenant, shard_key)"
            " SELECT 0, 1, now(), now(), n %% 3, 1, 0, 1000, 0, 0, 'pending', 'default', %s, 'idempotent',"
            " 'not_called', (%s::text[])[1 + n %% 3], CASE WHEN n %% 5 = 0 THEN 'key' || n %% %s END"
            " FROM generate_series(1, %s) AS n",
            [TASK, list(LIMITS), KEYS, jobs],
        )


class Session(threading.Thread):
    """One worker's connection: claims, runs for a moment, ends; and begins anew when it is killed."""

    def __init__(self, number: int, until: float) -> None:
        super().__init__(name=f"session-{number}")
        self.worker_id = 1_000 + number
        self.until = until
        self.counts: Counter[str] = Counter()
        self.slowest_claim = 0.0
        self.pid = 0
        self.is_over = False
        """Stays false when an error ended it."""

    def run(self) -> None:
        """Work until it is over, whatever happens to the connection."""
        while time.monotonic() < self.until:
            try:
                with connect("default", role="storm") as connection:
                    self.pid = connection.info.backend_pid
                    self._work(connection)
            except psycopg.OperationalError:
                self.counts["killed"] += 1
        self.is_over = True

    def _work(self, connection: Any) -> None:
        turn, failure = Turn(), Failure(FailureClass.SYSTEM, Description("builtins.OSError", "no", "no"))
        claimant = Claimant(worker_id=self.worker_id, tasks=(TASK,), lease_seconds=1.0)
        while time.monotonic() < self.until:
            lane = random.choice((Lane.LANED, Lane.LANED, Lane.ALONE))
            began = time.monotonic()
            leases = claim(connection, claimant, lane=lane, limit=random.choice((1, 3, 10)), turn=turn)
            self.slowest_claim = max(self.slowest_claim, time.monotonic() - began)
            self.counts["claimed"] += len(leases)
            time.sleep(random.random() * RUN_SECONDS if leases else 0.005)
            kinds = random.choices(
                (EndingKind.COMPLETE, EndingKind.RETRY, EndingKind.RELEASE, None), (80, 10, 7, 3), k=len(leases)
            )
            endings = [
                Ending(kind, lease.id, lease.fence, **({"failure": failure} if kind is EndingKind.RETRY else {}))
                for kind, lease in zip(kinds, leases, strict=True)
                if kind is not None
            ]
            if endings:
                settle(connection, worker_id=self.worker_id, endings=endings)
            if random.random() < 0.05:
                self.counts["taken over"] += len(take_over_expired(connection))


def kill_now_and_then(url: str, sessions: list[Session], until: float) -> None:
    """Terminate a session at a random moment, some ten times a second."""
    with psycopg.connect(url, autocommit=True) as connection:
        while time.monotonic() < until:
            time.sleep(random.random() * 0.2)
            connection.execute("SELECT pg_terminate_backend(%s)", [random.choice(sessions).pid])


CHANGE = re.compile(r"table public\.pgqueue_job: (INSERT|UPDATE): (.*)", re.S)
FIELD = re.compile(r"(\w+)\[[^\]]+\]:('(?:[^']|'')*'|\S+)")


class Checker:
    """Replays commits, and counts."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, str]] = {}
        self.running: Counter[str] = Counter()
        self.keys: Counter[str] = Counter()
        self.waiting: defaultdict[str, dict[str, datetime]] = defaultdict(dict)
        self.most: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.started: set[str] = set()
        self.idle_since: dict[str, datetime] = {}
        self.longest: dict[str, float] = dict.fromkeys(LIMITS, 0.0)
        self.commits = 0

    def read(self, url: str) -> None:
        """Take in all that was committed since the last time."""
        with psycopg.connect(url, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT data FROM pg_logical_slot_get_changes(%s, NULL, NULL, 'include-timestamp', 'on')", [SLOT]
            )
            for (data,) in rows:
                if data.startswith("COMMIT"):
                    self._commit(data)
                elif change := CHANGE.match(data):
                    self._change({name: value.strip("'") for name, value in FIELD.findall(change[2])})

    def _change(self, row: dict[str, str]) -> None:
        before = self.rows.get(row["id"])
        if before is not None and before["state"] == "running":
            self.running[before["tenant"]] -= 1
            self.keys[before["shard_key"]] -= 1
        if row["state"] == "running":
            self.started.add(row["tenant"])
            self.running[row["tenant"]] += 1
            self.keys[row["shard_key"]] += 1
        self.rows[row["id"]] = {name: row[name] for name in ("state", "tenant", "shard_key")}
        # A job that lost its lease waits for a worker that holds nothing else, and one of a key for the key.
        if row["state"] in ("pending", "retrying") and row["lane"] == "1" and row["shard_key"] == "null":
            self.waiting[row["tenant"]][row["id"]] = datetime.fromisoformat(row["run_at"])
        else:
            self.waiting[row["tenant"]].pop(row["id"], None)

    def _commit(self, data: str) -> None:
        self.commits += 1
        at = datetime.fromisoformat(re.search(r"\(at (.*)\)", data)[1])  # type: ignore[index]
        for tenant, limit in LIMITS.items():
            running = self.running[tenant]
            self.most[tenant] = max(self.most[tenant], running)
            if running > limit:
                self.wrong.append(f"{running} of {tenant} at {at}")
            self._weigh(tenant, at, free=running < limit)
        self.wrong += [f"{count} of {key} at {at}" for key, count in self.keys.items() if count > 1 and key != "null"]

    def _weigh(self, tenant: str, at: datetime, *, free: bool) -> None:
        """Note for how long a slot was free, and a job without a key was due, and none of the tenant was started."""
        if since := self.idle_since.get(tenant):
            self.longest[tenant] = max(self.longest[tenant], (at - since).total_seconds())
        if tenant in self.started or not free or not any(run_at <= at for run_at in self.waiting[tenant].values()):
            self.idle_since.pop(tenant, None)
        if free and any(run_at <= at for run_at in self.waiting[tenant].values()):
            self.idle_since.setdefault(tenant, at)
        self.started.discard(tenant)


def errors_in(log: str) -> list[str]:
    """Return lines of the server's log that no kill explains."""
    killed = "terminating connection due to administrator command"
    return [line for line in log.splitlines() if re.search(r"(ERROR|FATAL|PANIC):", line) and killed not in line]


def main() -> int:
    """Let it rage, then check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--sessions", type=int, default=10)
    options = parser.parse_args()
    server = logical_server()
    try:
        os.environ["DATABASE_URL"] = server.url
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_project.settings")
        django.setup()
        logging.disable(logging.WARNING)
        prepare(server.url, int(options.seconds * JOBS_PER_SECOND))
        return rage(server, options)
    finally:
        server.stop()


def rage(server: Any, options: argparse.Namespace) -> int:
    """Run the sessions and their killer; tell what the checker saw."""
    log = server.cluster.log.stat().st_size
    until = time.monotonic() + options.seconds
    sessions = [Session(number, until) for number in range(options.sessions)]
    for session in sessions:
        session.start()
    kill_now_and_then(server.url, sessions, until)
    for session in sessions:
        session.join()
    checker = Checker()
    checker.read(server.url)
    errors = errors_in(server.cluster.log.read_text()[log:])
    print("sessions:", dict(sum((session.counts for session in sessions), Counter())))
    print(f"commits: {checker.commits}; most at once: {dict(checker.most)} of {LIMITS}")
    print(f"longest that a slot was free, work due and none started: {checker.longest}")
    print(f"exceeded: {len(checker.wrong)} {checker.wrong[:5]}; errors in the server's log: {len(errors)} {errors[:5]}")
    left = sum(map(len, checker.waiting.values()))
    slowest_claim = max(session.slowest_claim for session in sessions)
    too_long = max(checker.longest.values()) > conf.current().poll_without_listen_seconds + slowest_claim
    print(f"slowest claim: {slowest_claim:.3f} s; jobs still waiting at the end: {left}")
    raged = (
        left
        and all(session.is_over for session in sessions)
        and all(checker.most[tenant] >= limit / 2 for tenant, limit in LIMITS.items())
    )
    return int(bool(checker.wrong or errors or too_long or not raged))


if __name__ == "__main__":
    sys.exit(main())
