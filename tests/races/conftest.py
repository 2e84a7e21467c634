"""What races need beside the shared fixtures: operators in threads, and one of them stopped before its COMMIT."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.db import connections

from pgqueue.operations import Action, Actor, act
from pgqueue.protocol import operating

PATIENCE_SECONDS = 20.0
"""After this a test fails instead of hanging; nothing waits so long when all is well."""
POLL_SECONDS = 0.005

OPERATOR = Actor(id="1", name="op1")

Connection = psycopg.Connection[Any]


@pytest.fixture
def patient_locks(settings: Any) -> None:
    """Verbs wait for a lock longer than any test takes: a slow machine must not turn a wait into `busy`."""
    settings.PGQUEUE = {"LOCK_TIMEOUT_SECONDS": PATIENCE_SECONDS}


@pytest.fixture
def threads(transactional_db: None) -> Iterator[ThreadPoolExecutor]:
    """Threads that leave no connection of Django's behind."""
    with ThreadPoolExecutor(max_workers=50) as pool:
        yield pool


@pytest.fixture
def act_in_background(threads: ThreadPoolExecutor) -> Callable[..., Future[Action]]:
    """A function that acts in a thread, on a connection of that thread, and returns the future action."""

    def act_and_close(*args: Any, **options: Any) -> Action:
        try:
            return act(*args, **{"actor": OPERATOR, "reason": "a race", **options})
        finally:
            connections.close_all()

    def start(*args: Any, **options: Any) -> Future[Action]:
        return threads.submit(act_and_close, *args, **options)

    return start


class Stop:
    """Lets the first caller of a function in, and keeps it there after the function has done its work."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._first = threading.Lock()
        self._reached = threading.Event()
        self._may_go = threading.Event()

    def __call__(self, *args: Any, **options: Any) -> Any:
        answer = self._function(*args, **options)
        if self._first.acquire(blocking=False):
            self._reached.set()
            assert self._may_go.wait(PATIENCE_SECONDS)
        return answer

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE_SECONDS), "nobody came here"

    def release(self) -> None:
        self._may_go.set()


@pytest.fixture
def stopped_before_commit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stop]:
    """The first action of the test stops after its last statement: all is written and nothing committed."""
    stop = Stop(operating.audit)
    monkeypatch.setattr(operating, "audit", stop)
    yield stop
    stop.release()


@pytest.fixture
def stopped_after_lock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stop]:
    """The first action of the test stops once it holds its row's lock, before it has decided anything."""
    stop = Stop(operating.lock_target)
    monkeypatch.setattr(operating, "lock_target", stop)
    yield stop
    stop.release()


@pytest.fixture
def wait_until_sessions_wait(watching_connection: Connection) -> Callable[[int], None]:
    """A function that returns once so many sessions of this database wait for a lock."""

    def wait(count: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while _count_waiting(watching_connection) < count:
            assert time.monotonic() < deadline, f"no {count} sessions waited for a lock"
            time.sleep(POLL_SECONDS)

    return wait


def _count_waiting(connection: Connection) -> int:
    row = connection.execute(
        """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND wait_event_type = 'Lock'
            AND cardinality(pg_blocking_pids(pid)) > 0
        """
    ).fetchone()
    assert row is not None
    return row[0]
