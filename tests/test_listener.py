"""A listener knows whether it hears: LISTEN may succeed on a connection that is never told anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from pgqueue.worker import listener as listening
from pgqueue.worker.listener import Listener

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])


@pytest.fixture
def start() -> Iterator[Callable[[], tuple[Listener, threading.Event]]]:
    """A function that starts a listener and waits until it has taken its place."""
    started: list[Listener] = []

    def start() -> tuple[Listener, threading.Event]:
        woken = threading.Event()
        listener = Listener("default", on_wake=woken.set)
        listener.start()
        started.append(listener)
        assert woken.wait(30)
        woken.clear()
        return listener, woken

    yield start
    for listener in started:
        listener.stop()


def test_a_listener_that_hears_itself_counts_as_listening(
    start: Callable[[], tuple[Listener, threading.Event]],
) -> None:
    listener, _ = start()
    assert listener.is_listening


@pytest.mark.case("C24")
def test_a_listener_never_has_a_transaction_open(
    start: Callable[[], tuple[Listener, threading.Event]], queue_connection: psycopg.Connection[Any]
) -> None:
    """The server keeps every notification until the oldest transaction of a listener has ended.

    It opens one of its own for the moment in which it passes a notification on; the session stays idle all the same.
    """
    look = (
        "SELECT state, xact_start FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name = 'pgqueue listener'"
    )
    _, woken = start()
    for _ in range(1_000):
        queue_connection.execute("SELECT pg_notify('pgqueue', 'default')")
        ((state, _),) = queue_connection.execute(look).fetchall()
        assert state == "idle"
    assert woken.wait(30)
    deadline = time.monotonic() + 10
    while queue_connection.execute(look).fetchall() != [("idle", None)]:
        assert time.monotonic() < deadline, "a transaction of the listener stays open"


@pytest.mark.case("C17")
def test_a_deaf_listener_says_so_and_leaves_the_worker_to_poll(
    start: Callable[[], tuple[Listener, threading.Event]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Behind a transaction pooler LISTEN reaches a session that the next client gets."""
    monkeypatch.setattr(listening, "listen", lambda connection: None)
    monkeypatch.setattr(listening, "HEARING_SECONDS", 0.2)
    listener, _ = start()
    assert not listener.is_listening
    assert "listener.deaf" in caplog.text
