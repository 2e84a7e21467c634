"""Notice a dispatcher that does not come back from a turn, from outside of its thread."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from ..logs import get_logger
from .exits import Exit

logger = get_logger(__name__)

STALLED_SECONDS = 10.0
"""Length of a turn that is worth a log line; the next line comes when it has taken twice as long."""
ANSWERS_SECONDS = 120.0
"""How long, beyond a lease, a turn may take that makes progress: several answers, each of them bounded."""


class Stall:
    """Since when the dispatcher has been in the same turn.

    Each of its exchanges with the server is bounded. What is not: the resolver, a log handler or a lock of the
    project's, C code. A process whose dispatcher stands still claims nothing and settles nothing, though its
    heartbeat looks alive.
    """

    def __init__(self, *, worker_id: int, lease_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._worker_id = worker_id
        self._longest_seconds = lease_seconds + ANSWERS_SECONDS
        self._clock = clock
        self._began_at: float | None = None
        self._tell_after_seconds = STALLED_SECONDS

    def begin(self) -> None:
        """Note that a turn begins."""
        self._began_at = self._clock()

    def end(self) -> None:
        """Note that the turn is over."""
        self._began_at = None

    def look(self) -> None:
        """Log a turn that takes too long, and end the process when it has taken for ever. For another thread."""
        seconds = self._seconds()
        if seconds is None or seconds < STALLED_SECONDS:
            self._tell_after_seconds = STALLED_SECONDS
            return
        if seconds >= self._tell_after_seconds:
            self._tell_after_seconds = 2 * seconds
            logger.error("worker.dispatcher_stalled worker=%d seconds=%.0f", self._worker_id, seconds)
        if seconds >= self._longest_seconds:
            logger.critical("worker.stopping reason=dispatcher_stalled worker=%d", self._worker_id)
            # The main thread is the one that stands still: nothing can be drained. Its leases run out.
            os._exit(Exit.UNFIT)

    def _seconds(self) -> float | None:
        began_at = self._began_at
        return None if began_at is None else self._clock() - began_at
