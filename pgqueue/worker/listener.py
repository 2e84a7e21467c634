"""Hear when jobs are enqueued. A hint: without it the worker polls more often."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable

import psycopg

from ..backoff import delay_seconds
from ..foreign import told
from ..logs import get_logger
from ..protocol.connecting import connect
from ..protocol.listening import BULK, QUEUES, Subscription, notify

logger = get_logger(__name__)

HEARING_SECONDS = 5.0
"""How long our own notification may take before the connection counts as deaf."""
ANSWER_SECONDS = 10.0
"""How long the server may take to answer: a half-open connection is noticed so long after a silence."""
SILENCE_SECONDS = 60.0
"""Longest silence before the listener proves that it hears. Keepalives do not: a middlebox answers them."""
STOP_SECONDS = 1.0
"""Longest wait for the thread of a process that ends."""


class DeafError(Exception):
    """The listener does not hear its own notification."""


class Listener(threading.Thread):
    """Listens for ever. A connection that is lost or deaf is made again, with a growing pause."""

    def __init__(self, alias: str, on_wake: Callable[[], None], on_bulk: Callable[[], None] = lambda: None) -> None:
        super().__init__(name="pgqueue-listener", daemon=True)
        self.is_listening = False
        self._alias = alias
        self._on_wake = on_wake
        self._on_bulk = on_bulk
        self._failures = 0
        self._is_known_deaf = False
        self._stopped = threading.Event()
        self._interrupt, self._interrupted = socket.socketpair()

    def stop(self) -> None:
        """Stop hearing, and wait until the connection is closed; not for a server that does not answer."""
        self._stopped.set()
        with contextlib.suppress(OSError):  # The thread may have ended by itself, and closed the other end.
            self._interrupt.send(b"\0")
        self.join(STOP_SECONDS)
        self._interrupt.close()

    def run(self) -> None:
        """Listen until stopped."""
        with self._interrupted:
            self._run()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with connect(self._alias, role="listener", answer_seconds=ANSWER_SECONDS) as connection:
                    self._listen(connection)
            except DeafError:
                self._say_deaf()
            except Exception as error:  # Whatever it was: a thread that ended while it counts as listening is deaf.
                self._failures += 1
                logger.warning("listener.failed %s", told(error))
            self._pause()

    def _pause(self) -> None:
        if self.is_listening:
            # The worker sleeps for as long as it would while somebody wakes it.
            self.is_listening = False
            self._on_wake()
        base_seconds, cap_seconds = (30, 300) if self._is_known_deaf else (0.5, 30)
        self._stopped.wait(delay_seconds(max(self._failures, 1), base_seconds=base_seconds, cap_seconds=cap_seconds))

    def _say_deaf(self) -> None:
        self._failures += 1
        if not self._is_known_deaf:
            self._is_known_deaf = True
            logger.warning("listener.deaf alias=%s", self._alias)

    def _listen(self, connection: psycopg.Connection) -> None:
        """Return when stopped. Raise `DeafError` when our own notification is not heard."""
        subscription = Subscription(connection)
        # From another connection: behind a transaction pooler LISTEN succeeds, and hears nothing.
        with connect(self._alias, role="listener check", answer_seconds=ANSWER_SECONDS) as other:
            notify(other, subscription.own_channel)
        self._prove(subscription)
        self.is_listening, self._is_known_deaf, self._failures = not self._stopped.is_set(), False, 0
        self._on_wake()
        while not self._stopped.is_set():
            if not self._hear(subscription, seconds=SILENCE_SECONDS) and not self._stopped.is_set():
                subscription.ask()
                self._prove(subscription)

    def _prove(self, subscription: Subscription) -> None:
        """Wait for our own notification. Raise `DeafError` when it does not come."""
        deadline = time.monotonic() + HEARING_SECONDS
        while not self._stopped.is_set():
            if subscription.own_channel in self._hear(subscription, seconds=deadline - time.monotonic()):
                return
            if time.monotonic() > deadline and not self._stopped.is_set():
                raise DeafError

    def _hear(self, subscription: Subscription, *, seconds: float) -> set[str]:
        """Wait for notifications, pass on what they say, and return the channels they came on."""
        heard = subscription.wait(timeout_seconds=seconds, interrupt=self._interrupted)
        if BULK in heard:
            self._on_bulk()
        if QUEUES in heard:
            self._on_wake()
        return heard
