"""Hear when jobs are enqueued. A hint: without it the worker polls more often."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import psycopg

from ..backoff import delay_seconds
from ..protocol.connecting import connect
from ..protocol.listening import BULK, listen, wait, wake

logger = logging.getLogger(__name__)

HEARING_SECONDS = 5.0
"""How long our own notification may take before the connection counts as deaf."""
CHECK_SECONDS = 1.0
"""How often the thread looks whether it should stop; asks the server nothing."""
STOP_SECONDS = 5.0
"""Longest wait for the thread of a process that ends."""


class Listener(threading.Thread):
    """Listens for ever; a lost connection is made again, with a growing pause, and never without LISTEN."""

    def __init__(self, alias: str, on_wake: Callable[[], None], on_bulk: Callable[[], None] = lambda: None) -> None:
        super().__init__(name="pgqueue-listener", daemon=True)
        self.is_listening = False
        self._alias = alias
        self._on_wake = on_wake
        self._on_bulk = on_bulk
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop hearing, and wait until the connection is closed; not for a server that does not answer."""
        self._stopped.set()
        self.join(STOP_SECONDS)

    def run(self) -> None:
        """Listen until stopped."""
        failures = 0
        while not self._stopped.is_set():
            try:
                self._listen()
            except Exception as error:  # Whatever it was: a thread that ended while it counts as listening is deaf.
                failures = 1 if self.is_listening else failures + 1
                self.is_listening = False
                logger.warning("listener.failed error=%s", type(error).__name__)
                self._stopped.wait(delay_seconds(failures, base_seconds=0.5, cap_seconds=30))

    def _hears(self, connection: psycopg.Connection[Any]) -> bool:
        """Notify ourselves from another connection: behind a transaction pooler LISTEN succeeds and hears nothing."""
        token = f"check:{uuid.uuid4().hex}"
        with connect(self._alias, role="listener check") as other:
            wake(other, [token])
        patience = time.monotonic() + HEARING_SECONDS
        while (left := patience - time.monotonic()) > 0 and not self._stopped.is_set():
            if wait(connection, timeout_seconds=min(left, CHECK_SECONDS)) == token:
                return True
        return False

    def _listen(self) -> None:
        connection = connect(self._alias, role="listener")
        try:
            listen(connection)
            self.is_listening = self._hears(connection)
            if not self.is_listening:
                logger.warning("listener.deaf alias=%s", self._alias)
            self._on_wake()
            while not self._stopped.is_set():
                heard = wait(connection, timeout_seconds=CHECK_SECONDS)
                if heard is None:
                    continue
                self.is_listening = True
                if heard == BULK:
                    self._on_bulk()
                else:
                    self._on_wake()
        finally:
            connection.close()
