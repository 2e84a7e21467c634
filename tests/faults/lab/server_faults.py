"""What can be done to the server: restarts, locks, privileges, limits, and triggers of the site."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from .faults import CONNECTIONS, EVERYTHING, OF_A_ROLE, Fault, drains, freezes, kills, terminations, turns
from .world import ROLE, World, give_rights

RAISES = """
    CREATE FUNCTION lab_raise() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        RAISE EXCEPTION 'a rule of the site';
    END
    $$;
    CREATE TRIGGER lab_raise BEFORE UPDATE ON pgqueue_job
        FOR EACH ROW WHEN (NEW.state = 'succeeded' AND NEW.id % 20 = 0) EXECUTE FUNCTION lab_raise();
"""


def stopped(mode: str, *, down_seconds: float = 0.0) -> Fault:
    """Stop the server so that it is down for some time, and start it again."""

    def fault(world: World, seconds: float) -> int:
        cluster = world.server.cluster
        pid = int((cluster.data / "postmaster.pid").read_text().splitlines()[0])
        if mode == "kill":
            os.kill(pid, signal.SIGKILL)
        else:
            cluster._must("pg_ctl", "stop", "-w", "-D", str(cluster.data), "-m", mode)
        time.sleep(down_seconds)
        cluster.bring_up(fsync=True)
        return 1

    return fault


def connections_taken(world: World, seconds: float) -> int:
    """Take every connection that is left, and each one that a worker gives up."""
    taken: list[psycopg.Connection[Any]] = []
    url = world.url()
    world.observer.rows("SELECT 1")
    try:
        for number in turns(seconds, 0.2):
            with suppress(psycopg.OperationalError):
                while len(taken) < 400:
                    taken.append(psycopg.connect(url, autocommit=True, application_name="lab taker"))
            if number == 1:
                world.observer.rows(OF_A_ROLE, ROLE, "^pgqueue (worker|listener)$")
    finally:
        for connection in taken:
            connection.close()
    return len(taken)


@contextmanager
def transaction(world: World, statement: str) -> Iterator[None]:
    """Hold an open transaction that has done this."""
    with psycopg.connect(world.server.url, application_name="lab holder") as holder:
        holder.execute("SET LOCAL lock_timeout = '20s'")
        holder.execute(statement)
        yield
        holder.rollback()


def held(statement: str) -> Fault:
    """Keep a transaction open that has done this: a snapshot, row locks, or a lock on the table."""

    def fault(world: World, seconds: float) -> int:
        with transaction(world, statement):
            time.sleep(seconds)
        return 1

    return fault


SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pgqueue_job"
ROWS = """
    SELECT FROM pgqueue_job WHERE state IN ('pending', 'retrying', 'running')
    ORDER BY random() LIMIT 100 FOR UPDATE SKIP LOCKED
"""
TABLE = "LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE"


def altered(begin: str, end: str, *, cut: str | None = None) -> Fault:
    """Change something, cut the connections of one kind where that is needed to feel it, and change it back."""

    def fault(world: World, seconds: float) -> int:
        for statement in begin.split(";"):
            world.observer.rows(statement)
        try:
            if cut is not None:
                world.observer.rows(OF_A_ROLE, ROLE, CONNECTIONS[cut])
            time.sleep(seconds)
        finally:
            for statement in end.split(";"):
                world.observer.rows(statement)
        return 1

    return fault


READ_ONLY = (
    "ALTER SYSTEM SET default_transaction_read_only = on; SELECT pg_reload_conf()",
    "ALTER SYSTEM RESET default_transaction_read_only; SELECT pg_reload_conf()",
)
NOLOGIN = (f"ALTER ROLE {ROLE} NOLOGIN", f"ALTER ROLE {ROLE} LOGIN")
CONNECTION_LIMIT = (f"ALTER ROLE {ROLE} CONNECTION LIMIT 1", f"ALTER ROLE {ROLE} CONNECTION LIMIT -1")
RENAMED = ("ALTER TABLE pgqueue_jobresult RENAME TO away", "ALTER TABLE away RENAME TO pgqueue_jobresult")
WIDENED = (
    "ALTER TABLE pgqueue_job ALTER COLUMN on_dead TYPE varchar(200)",
    "ALTER TABLE pgqueue_job ALTER COLUMN on_dead TYPE text",
)
"""As an ordinary later migration does: cached plan must not change result type."""


def revoked(privileges: str, tables: str) -> Fault:
    def fault(world: World, seconds: float) -> int:
        world.observer.rows(f"REVOKE {privileges} ON {tables} FROM {ROLE}")
        try:
            time.sleep(seconds)
        finally:
            give_rights(world.observer.connection())
        return 1

    return fault


def raising(world: World, seconds: float) -> int:
    """Let a trigger of the site refuse the success of every twentieth job."""
    world.observer.connection().execute(RAISES)
    try:
        time.sleep(seconds)
    finally:
        world.observer.rows("DROP FUNCTION lab_raise CASCADE")
    return 1


def by_chance(world: World, seconds: float) -> int:
    """For the soak: one of many faults after the other, with some calm between."""
    chosen = random.Random(13)
    struck = 0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        struck += chosen.choice(MIXED)(world, 4.0)
        time.sleep(3.0)
    return struck


def clock_set(offset_seconds: int) -> Fault:
    """Set the server's clock, and leave it so."""

    def fault(world: World, seconds: float) -> int:
        assert world.clock is not None
        world.clock.set(offset_seconds)
        time.sleep(seconds)
        return 1

    return fault


MIXED: list[Fault] = [
    kills,
    drains,
    freezes,
    terminations(EVERYTHING),
    altered(*READ_ONLY),
    altered(*NOLOGIN, cut="dispatcher"),
    held(ROWS),
    held(TABLE),
    stopped("fast"),
    stopped("immediate"),
    revoked("UPDATE", "pgqueue_job"),
    raising,
]
