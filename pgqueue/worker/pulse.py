"""A pipe by which a process that was started shows that it runs Python code: frozen, or stuck in C, it does not."""

from __future__ import annotations

import contextlib
import os
import time

from .lifeline import identity

BEAT = b"."


class PulseReader:
    """The end of the process that listens."""

    def __init__(self, *, deaf_seconds: float) -> None:
        self._deaf_seconds = deaf_seconds
        self._readable, self.writable = os.pipe()
        os.set_blocking(self._readable, False)
        self._heard_at: float | None = None

    def close_writable(self) -> None:
        """Close the end that the started process has by now."""
        os.close(self.writable)

    def is_silent(self) -> bool:
        """Return whether beats have come, and none for long. A closed end says nothing: a task may have closed it."""
        try:
            said = os.read(self._readable, 1 << 16)
        except BlockingIOError:
            return self._heard_at is not None and time.monotonic() - self._heard_at > self._deaf_seconds
        self._heard_at = time.monotonic() if said else None
        return False

    def close(self) -> None:
        """Listen no more."""
        os.close(self._readable)


class PulseWriter:
    """The end of the process that was started."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._identity = identity(descriptor)
        with contextlib.suppress(OSError):
            os.set_inheritable(descriptor, False)
            os.set_blocking(descriptor, False)

    def beat(self) -> None:
        """Show that this process runs. A task may have closed the descriptor, and others use its number."""
        if self._identity is not None and identity(self._descriptor) == self._identity:
            with contextlib.suppress(OSError):
                os.write(self._descriptor, BEAT)
