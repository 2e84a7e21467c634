"""A listener knows whether it hears: LISTEN may succeed on a connection that is never told anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection as django

from pgqueue.protocol.listening import Subscription, wake
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


def test_all_notifications_of_one_packet_are_heard(queue_connection: psycopg.Connection[Any]) -> None:
    woken, bulk = threading.Event(), threading.Event()
    listener = Listener("default", on_wake=woken.set, on_bulk=bulk.set)
    listener.start()
    try:
        assert woken.wait(30)
        woken.clear()
        queue_connection.execute("SELECT pg_notify('pgqueue_bulk', ''), pg_notify('pgqueue', 'mail')")
        assert bulk.wait(30)
        assert woken.wait(30)
    finally:
        listener.stop()


@pytest.mark.parametrize("name", ["bulk:", "bulk", "check:1", ""])
def test_a_queue_may_have_any_name(
    name: str, start: Callable[[], tuple[Listener, threading.Event]], queue_connection: psycopg.Connection[Any]
) -> None:
    _, woken = start()
    wake(queue_connection, [name])
    assert woken.wait(30)


@pytest.mark.case("C17")
def test_a_deaf_listener_says_so_and_leaves_the_worker_to_poll(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind a transaction pooler LISTEN reaches a session that the next client gets."""
    monkeypatch.setattr(listening, "notify", lambda connection, channel: None)
    monkeypatch.setattr(listening, "HEARING_SECONDS", 0.2)
    listener = Listener("default", on_wake=lambda: None)
    listener.start()
    try:
        until(lambda: "listener.deaf" in caplog.text)
        assert not listener.is_listening
        until(lambda: not sessions())
    finally:
        listener.stop()
    assert not listener.is_alive()


def test_a_listener_that_goes_deaf_notices_in_a_silence(
    start: Callable[[], tuple[Listener, threading.Event]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(listening, "SILENCE_SECONDS", 0.1)
    monkeypatch.setattr(listening, "HEARING_SECONDS", 0.2)
    monkeypatch.setattr(Subscription, "ask", lambda subscription: None)
    _, woken = start()
    assert woken.wait(30), "the worker is not told to sleep for a shorter time"
    until(lambda: "listener.deaf" in caplog.text)


def test_a_silence_wakes_nobody(
    start: Callable[[], tuple[Listener, threading.Event]], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = Subscription.ask

    def ask_and_tell(subscription: Subscription) -> None:
        asked.append(subscription.own_channel)
        ask(subscription)

    monkeypatch.setattr(listening, "SILENCE_SECONDS", 0.05)
    monkeypatch.setattr(Subscription, "ask", ask_and_tell)
    (first, woken_first), (second, woken_second) = start(), start()
    until(lambda: min(asked.count(channel) for channel in set(asked)) > 3 if len(set(asked)) == 2 else False)
    assert not woken_first.is_set()
    assert not woken_second.is_set()
    assert first.is_listening
    assert second.is_listening


def test_a_listener_that_is_stopped_ends_at_once_and_is_not_deaf(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the midst of its first proof too."""
    monkeypatch.setattr(listening, "notify", lambda connection, channel: None)
    listener = Listener("default", on_wake=lambda: None)
    listener.start()
    until(sessions)
    listener.stop()
    assert not listener.is_alive()
    assert not listener.is_listening
    assert "listener" not in caplog.text
    until(lambda: not sessions())


def sessions() -> list[Any]:
    with django.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'pgqueue listener'"
        )
        return cursor.fetchall()


def until(look: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.01)
