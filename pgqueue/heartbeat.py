"""Renew every lease of the process, on a thread and a connection that nothing else uses."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from . import conf
from .backoff import is_told
from .foreign import told
from .holding import Holdings, boot_seconds
from .logs import get_logger
from .protocol.connecting import ANSWER_SECONDS, connect, one_trip
from .protocol.cutting import cut
from .protocol.leasing import renew
from .protocol.registering import Heard, read_beat, send_beat
from .protocol.settling import Ending, Settled, settle

logger = get_logger(__name__)

RETRY_SECONDS = 0.5
"""Pause before another try when a beat failed: leases are running meanwhile."""
ANSWER_SHARE = 2 / 3
"""Share of the time between two beats that an answer is waited for: when one connection has gone silent, the beat after
it still comes within the lease."""
STOP_SECONDS = 5.0
"""Longest wait for the last beat of a process that ends."""


class Heartbeat(threading.Thread):
    """Beats from before the first claim until the last ending is written, through a drain too."""

    def __init__(
        self,
        *,
        alias: str,
        worker_id: int,
        holdings: Holdings,
        lease_seconds: float,
        every_seconds: float,
        on_all_run_out: Callable[[], None],
        on_heard: Callable[[Heard], None] = lambda heard: None,
    ) -> None:
        super().__init__(name="pgqueue-heartbeat", daemon=True)
        self.draining = False
        self._alias = alias
        self._worker_id = worker_id
        self._holdings = holdings
        self._lease_seconds = lease_seconds
        self._every_seconds = every_seconds
        self._retry_seconds = min(RETRY_SECONDS, every_seconds / 2)
        self._timeout_seconds = min(conf.current().heartbeat_timeout_seconds, every_seconds / 2)
        self._answer_seconds = min(ANSWER_SECONDS, every_seconds * ANSWER_SHARE)
        self._on_all_run_out = on_all_run_out
        self._on_heard = on_heard
        self._stopped = threading.Event()
        self._failures = 0
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()

    def settle(self, endings: Sequence[Ending]) -> Settled:
        """Write endings on this connection, for a dispatcher that gets none. Raise `psycopg.Error` when that fails.

        No connection is made for it: whatever keeps the dispatcher from one would keep this thread from it too.
        """
        with self._lock:
            if self._connection is None:
                raise psycopg.OperationalError("the heartbeat has no connection either")
            return settle(self._connection, worker_id=self._worker_id, endings=endings)

    def stop(self) -> None:
        """End the thread after the beat under way, which writes down that the process stopped.

        A server that does not answer is not waited for: the thread ends with the process.
        """
        self._stopped.set()
        self.join(STOP_SECONDS)

    def run(self) -> None:
        """Beat until stopped; a failed beat is tried again soon, on a new connection."""
        pause = self._every_seconds
        while not self._stopped.wait(pause):
            pause = self._every_seconds if self._beat_safely(stopped=False) else self._retry_seconds
        self._beat_safely(stopped=True)
        self._close()

    def _beat_safely(self, *, stopped: bool) -> bool:
        """Say whether the beat got through. Whatever went wrong: without this thread every lease would run out."""
        self._cut_vain_waits()
        try:
            with self._lock:
                self._beat(stopped=stopped)
        except Exception as error:
            self._failures += 1
            if is_told(self._failures):
                facts = (self._worker_id, self._failures, told(error))
                logger.warning("heartbeat.failed worker=%d failures=%d %s", *facts)
            self._close()
            return False
        self._failures = 0
        return True

    def _cut_vain_waits(self) -> None:
        """Let no run wait for the answer to a COMMIT after its lease: Django's connection would wait for ever."""
        for held in self._holdings.vainly_awaited():
            if (connection := held.awaited) is not None:
                logger.warning("commit.unanswered job=%d fence=%d", held.lease.id, held.lease.fence)
                # Its own transaction kept it from being renewed: that tells nothing of the process.
                held.lost = True
                cut(connection)

    def _beat(self, *, stopped: bool) -> None:
        if self._connection is None:
            self._connection = connect(
                self._alias,
                role="heartbeat",
                answer_seconds=self._answer_seconds,
                timeout_seconds=self._timeout_seconds,
            )
        self._renew(self._connection)
        # Apart, and bounded: a lock on this row or its table must not keep the next renewal waiting.
        with one_trip(self._connection, timeout_seconds=self._timeout_seconds, is_single=True):
            sent = send_beat(self._connection, worker_id=self._worker_id, draining=self.draining, stopped=stopped)
        self._on_heard(read_beat(sent))

    def _renew(self, connection: psycopg.Connection[Any]) -> None:
        asked_at = boot_seconds()
        asked = self._holdings.renewable()
        if self._holdings.have_run_out():
            self._on_all_run_out()
        if asked:
            renewal = renew(
                connection,
                worker_id=self._worker_id,
                held={id: held.lease.fence for id, held in asked.items()},
                lease_seconds=self._lease_seconds,
                timeout_seconds=self._timeout_seconds,
            )
            for lease in self._holdings.confirm(asked, renewal, asked_at=asked_at):
                logger.warning("lease.lost job=%d fence=%d worker=%d", lease.id, lease.fence, self._worker_id)
        self._holdings.hear(asked_at=asked_at)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
