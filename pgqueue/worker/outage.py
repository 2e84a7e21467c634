"""Whether the dispatcher is without a database because the server is away, or because its own process is broken."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Protocol

from ..backoff import delay_seconds, is_told
from ..foreign import told
from ..holding import LATE_SECONDS, boot_seconds
from ..logs import get_logger
from ..protocol.settling import Ending, Settled
from ..server_errors import DATABASE_ERRORS

logger = get_logger(__name__)

RECONNECT_CAP_SECONDS = 10.0
FEWEST_FAILURES = 3
"""Failures in a row before the trouble may count as the process's own: a short lease is over before one answer."""

CONNECTION_CLASSES = ("08", "57P", "25P03")
"""How the SQLSTATE of an error begins that ends the connection. Any other came through a connection that works."""


class Reach(Protocol):
    """What is asked about the heartbeat."""

    def reachable_seconds(self) -> float:
        """Return for how long the heartbeat has reached the server without a long silence."""


class Outage:
    """Failures of the dispatcher's turns since the last one that got through.

    A server that is away is waited for, however long. It is not away while the heartbeat reaches it: then the fault
    is in this process or in what it may do (a password that has been rotated, a limit on connections, no descriptor
    left), and a fresh process or another host may be free of it.
    """

    def __init__(
        self,
        reach: Reach,
        *,
        lease_seconds: float,
        settle_elsewhere: Callable[[Sequence[Ending]], Settled],
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        """`settle_elsewhere` writes endings on the heartbeat's connection, which may be the last of this process."""
        self.failures = 0
        self._settle_elsewhere = settle_elsewhere
        self._reach = reach
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._first_at: float | None = None
        self._since: float | None = None
        self._starved_since: float | None = None

    def fail(self, error: Exception) -> float:
        """Note that a turn failed, and return how long to wait before the next."""
        self.failures += 1
        if is_told(self.failures):
            logger.warning("database.failed failures=%d %s", self.failures, told(error))
        now = self._clock()
        self._first_at = now if self._first_at is None else self._first_at
        if _is_answer(error):
            self._since = None
        elif self._since is None:
            self._since = now
        if not _lacks_descriptors():
            self._starved_since = None
        elif self._starved_since is None:
            self._starved_since = now
        cap_seconds = min(RECONNECT_CAP_SECONDS, self._lease_seconds / 3)
        return delay_seconds(self.failures, base_seconds=0.1, cap_seconds=cap_seconds)

    def end(self) -> None:
        """Note that a turn got through."""
        if self.failures:
            self.failures = 0
            self._first_at = self._since = self._starved_since = None

    def is_own(self) -> bool:
        """Return whether for a lease the dispatcher got no connection, and that was not for want of a server."""
        if self._since is None or self.failures < FEWEST_FAILURES or not self._is_past(self._since):
            return False
        if self._starved_since is not None and self._is_past(self._starved_since):
            return True
        return self._reach.reachable_seconds() > self._lease_seconds

    def is_too_long(self) -> bool:
        """Return whether nothing got through for so long that late endings are not worth the wait any more."""
        return self._first_at is not None and self._clock() - self._first_at > self._lease_seconds + LATE_SECONDS

    def rescue(self, endings: Sequence[Ending]) -> Settled:
        """Write endings on the heartbeat's connection; when that fails too, all of them are to be sent again."""
        try:
            return self._settle_elsewhere(endings)
        except DATABASE_ERRORS as error:
            logger.warning("endings.kept count=%d %s", len(endings), told(error))
            return Settled(busy=list(endings))

    def _is_past(self, since: float) -> bool:
        return self._clock() - since > self._lease_seconds


def _is_answer(error: Exception) -> bool:
    """Return whether the server refused a statement, as opposed to the connection."""
    sqlstate = getattr(error, "sqlstate", None)
    return sqlstate is not None and not sqlstate.startswith(CONNECTION_CLASSES)


def _lacks_descriptors() -> bool:
    """Return whether this process can open nothing any more: then no connection either, wherever the server is."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)
    return False
