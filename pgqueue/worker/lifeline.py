"""The line between a supervisor and one of its processes, on which each learns what becomes of the other.

Signals alone do not do: C code of a task can ignore them or keep the interpreter from handling them, and a process that
has been orphaned gets none.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable

from ..logs import get_logger

logger = get_logger(__name__)

STOP = b"?"
"""Supervisor to process: drain, and answer. Repeated, to see whether the process still runs Python code."""
HEARD = b"!"
STOPPED = b"."
"""Process to supervisor: it has drained, and is about to end."""
ASK_SECONDS = 1.0
"""How often a process that is to drain is asked whether it still runs Python code."""


def open_line() -> tuple[int, int]:
    """Return the supervisor's end and the process's end."""
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


class SupervisorEnd:
    """What the supervisor knows of one process. It never waits here."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._asked_at: float | None = None
        self._unanswered_since: float | None = None
        self._stopped_at: float | None = None

    def descriptors(self) -> list[int]:
        """Return what to wait for; nothing once the process has closed its end."""
        return [] if self._descriptor is None else [self._descriptor]

    def ask_to_stop(self) -> None:
        """Ask the process to drain, or whether it still can, if it was not asked just now."""
        now = time.monotonic()
        if self._descriptor is None or (self._asked_at is not None and now - self._asked_at < ASK_SECONDS):
            return
        self._asked_at = now
        if self._unanswered_since is None:
            self._unanswered_since = now
        with contextlib.suppress(OSError):
            os.write(self._descriptor, STOP)

    def listen(self) -> None:
        """Read what the process has said. A closed end says nothing: a task may have closed it."""
        if self._descriptor is None:
            return
        try:
            said = os.read(self._descriptor, 4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self.close()
            return
        self._unanswered_since = None
        if STOPPED in said:
            self._stopped_at = time.monotonic()

    def has_stopped(self) -> bool:
        """Return whether the process has drained and its end is due."""
        return self._stopped_at is not None

    def overdue(self, *, deaf_seconds: float, linger_seconds: float) -> str | None:
        """Return why the process is to be killed, or None: it has drained and does not end, or it does not answer."""
        now = time.monotonic()
        if self._stopped_at is not None and now - self._stopped_at > linger_seconds:
            return "lingers"
        if self._unanswered_since is not None and now - self._unanswered_since > deaf_seconds:
            return "deaf"
        return None

    def close(self) -> None:
        """Forget what is due."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = self._unanswered_since = None


class WorkerEnd:
    """The end of a supervised process."""

    def __init__(self, descriptor: int, *, slot: int) -> None:
        self.slot = slot
        """Which of the supervisor's processes this is."""
        self._descriptor = descriptor
        self._identity = identity(descriptor)

    def start(self, on_stop: Callable[[], None]) -> None:
        """Call `on_stop` when the supervisor asks for it, or is gone, however it went."""
        threading.Thread(target=self._serve, args=(on_stop,), name="pgqueue-lifeline", daemon=True).start()

    def say_stopped(self) -> None:
        """Say that this process has drained: from now on it has a bounded time to end."""
        self._say(STOPPED)

    def _serve(self, on_stop: Callable[[], None]) -> None:
        was_told = False
        while self._is_whole():
            said = os.read(self._descriptor, 1)
            if not said:
                logger.warning("worker.orphaned pid=%d", os.getpid())
            if not was_told:
                on_stop()
                was_told = True
            if not said:
                return
            self._say(HEARD)

    def _say(self, word: bytes) -> None:
        if self._is_whole():
            with contextlib.suppress(OSError):
                os.write(self._descriptor, word)

    def _is_whole(self) -> bool:
        """Return whether the descriptor is still the line: a task may have closed it, and others use its number."""
        return identity(self._descriptor) == self._identity


def identity(descriptor: int) -> tuple[int, int] | None:
    """Return what tells the file behind a descriptor from others; None where there is none."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino
