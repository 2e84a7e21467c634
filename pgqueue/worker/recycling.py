"""Reasons to replace a process that works: its memory has grown too far, or its code has changed."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from django.utils import autoreload

from .. import registry
from ..logs import get_logger
from .exits import Exit
from .inbox import Inbox, Signal

logger = get_logger(__name__)

CHECK_SECONDS = 1.0
"""How often memory is read: that costs a few microseconds."""
STATM = Path("/proc/self/statm")
KIB_PER_MIB = 1024
BYTES_PER_MIB = 1024 * KIB_PER_MIB


def resident_mb() -> float:
    """Return the MiB of memory this process has now; where the system does not say, the most it ever had."""
    try:
        pages = int(STATM.read_text().split()[1])
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (BYTES_PER_MIB if sys.platform == "darwin" else KIB_PER_MIB)
    return pages * resource.getpagesize() / BYTES_PER_MIB


class MemoryWatch(threading.Thread):
    """Tells once when the limit is passed, be it in the middle of a long job. Watches nothing without a limit."""

    def __init__(self, limit_mb: int | None, *, on_over: Callable[[], None]) -> None:
        super().__init__(name="pgqueue-memory", daemon=True)
        self.is_over = False
        self._limit_mb = limit_mb
        self._on_over = on_over
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Watch no more: the process ends for another reason, or it has been told."""
        self._stopped.set()

    def run(self) -> None:
        """Watch until stopped, or until the limit is passed."""
        while self._limit_mb is not None and not self._stopped.wait(CHECK_SECONDS):
            resident = resident_mb()
            if resident > self._limit_mb:
                self.is_over = True
                logger.warning("worker.recycling reason=memory resident_mb=%.0f limit_mb=%d", resident, self._limit_mb)
                self._on_over()
                return


class CodeWatch(threading.Thread):
    """Runs Django's reloader, which decides what to watch and what a change means."""

    def __init__(self, *, on_change: Callable[[], None]) -> None:
        super().__init__(name="pgqueue-code", daemon=True)
        self.saw_change = False
        self._on_change = on_change

    def run(self) -> None:
        """Watch until a file has changed."""
        try:
            autoreload.get_reloader().run(threading.main_thread())
        except SystemExit:  # How the reloader says so.
            self.saw_change = True
            self._on_change()


def run_reloading(work: Callable[[Inbox], int]) -> int:
    """Run `work` and return its status, or `Exit.RELOAD` when it ended only because a file had changed.

    Task modules that cannot be imported are waited for: the next change may mend them.
    """
    inbox = Inbox()
    watch = CodeWatch(on_change=lambda: inbox.put(Signal.STOP))
    watch.start()
    try:
        autoreload.check_errors(registry.discover)()
    except Exception:
        logger.exception("worker.waiting reason=import_failed until=file_changes")
        watch.join()
        return Exit.RELOAD
    status = work(inbox)
    return Exit.RELOAD if watch.saw_change and not inbox.has_stop_signal else status


def start_anew() -> None:
    """Put a fresh start of the same command in the place of this process, under the same pid."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    command = [str(word) for word in autoreload.get_child_arguments()]
    os.execv(command[0], command)
