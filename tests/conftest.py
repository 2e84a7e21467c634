"""Shared fixtures: connections of the queue's own to the test database, and a way to see a session wait.

A test that needs them is marked `django_db(transaction=True)`, and Django empties every table after it; with
`available_apps=["pgqueue"]` it empties the queue's alone, four times faster. The fence sequence is never
restarted: a fence is larger than any given before, in tests as elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.db import connection as django_connection

from pgqueue.protocol.connecting import connect

DEADLINE_SECONDS = 10.0
POLL_SECONDS = 0.005

Connection = psycopg.Connection[Any]


@pytest.fixture
def session(db: None) -> Connection:
    """The connection beneath Django's, inside the test's transaction: for one session, and nothing to empty."""
    with django_connection.cursor() as cursor:
        # Begins the transaction that Django has only announced: psycopg would begin, and commit, one of its own.
        cursor.execute("SELECT")
    return django_connection.connection


@pytest.fixture
def open_connection(transactional_db: None) -> Iterator[Callable[[], Connection]]:
    """A function that opens one more connection of the queue's own, closed before the tables are emptied."""
    opened: list[Connection] = []

    def open_one() -> Connection:
        opened.append(connect("default", role="test"))
        # As the guard of every transaction has it: what runs for a millisecond may be compiled for ten seconds.
        opened[-1].execute("SET jit = off")
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def queue_connection(open_connection: Callable[[], Connection]) -> Connection:
    """An autocommit connection of the queue's own, apart from Django's."""
    return open_connection()


@pytest.fixture
def second_connection(open_connection: Callable[[], Connection]) -> Connection:
    """One more, for a second session."""
    return open_connection()


@pytest.fixture
def watching_connection(open_connection: Callable[[], Connection]) -> Connection:
    """One more, that only looks at the others."""
    return open_connection()


@pytest.fixture
def wait_until_blocked(watching_connection: Connection) -> Callable[[Connection], None]:
    """A function that returns once the session of a connection waits for a lock; fails after ten seconds."""

    def wait(connection: Connection) -> None:
        _poll(watching_connection, "SELECT cardinality(pg_blocking_pids(%s)) > 0", connection.info.backend_pid)

    return wait


@pytest.fixture
def wait_until_blocking(watching_connection: Connection) -> Callable[[Connection], None]:
    """A function that returns once any session waits for the one of a connection; fails after ten seconds."""

    def wait(connection: Connection) -> None:
        query = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid)))"
        _poll(watching_connection, query, connection.info.backend_pid)

    return wait


def _poll(connection: Connection, query: str, pid: int) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while connection.execute(query, [pid]).fetchone() != (True,):
        if time.monotonic() > deadline:
            sessions = connection.execute(
                "SELECT pid, state, wait_event_type, wait_event, query FROM pg_stat_activity"
                " WHERE datname = current_database()"
            ).fetchall()
            pytest.fail(f"nobody waits as expected, {pid} is the session in question: {sessions}")
        time.sleep(POLL_SECONDS)


@pytest.fixture
def in_background() -> Iterator[Callable[..., Future[Any]]]:
    """A function that calls another in a thread and returns its future: `in_background(claim, connection, ...)`."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit
