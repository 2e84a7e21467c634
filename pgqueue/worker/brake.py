"""Hold claims back while the server refuses the endings of one job after the other: running more would be in vain."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..backoff import delay_seconds
from ..logs import get_logger

logger = get_logger(__name__)

REFUSED_IN_A_ROW = 10
"""Jobs whose endings are refused, with none written between, after which the fault is not that of single rows."""
PAUSE_BASE_SECONDS = 1.0
PAUSE_CAP_SECONDS = 10.0


class Brake:
    """Counts refused endings. While it is on, a job is claimed now and then, to find out whether its ending is taken.

    A job whose ending cannot be written is lost once its lease is over, and runs again. Without a brake, a privilege
    that is missing for an hour would run everything in the queue again and again, until it is dead.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.until = 0.0
        """When the next job may be claimed."""
        self._clock = clock
        self._in_a_row = 0
        self._pauses = 0

    @property
    def is_on(self) -> bool:
        """Whether too many endings were refused in a row."""
        return self._in_a_row >= REFUSED_IN_A_ROW

    @property
    def holds(self) -> bool:
        """Whether nothing is to be claimed now."""
        return self.is_on and self._clock() < self.until

    def note_refused(self, count: int) -> None:
        """Note that the endings of so many jobs were refused for the first time."""
        if not count:
            return
        was_on = self.is_on
        self._in_a_row += count
        if self.is_on:
            self._pause()
        if self.is_on and not was_on:
            logger.error("claims.braked refused=%d", self._in_a_row)

    def note_claimed(self, count: int) -> None:
        """Note that so many jobs were claimed: what becomes of them is waited for."""
        if self.is_on and count:
            self._pause()

    def note_written(self) -> None:
        """Note that an ending was written."""
        if self.is_on:
            logger.info("claims.resumed refused=%d", self._in_a_row)
        self._in_a_row = self._pauses = 0

    def _pause(self) -> None:
        self._pauses += 1
        wait = delay_seconds(self._pauses, base_seconds=PAUSE_BASE_SECONDS, cap_seconds=PAUSE_CAP_SECONDS)
        self.until = self._clock() + wait
