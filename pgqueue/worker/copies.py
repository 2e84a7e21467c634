"""End the copies of a worker process that a task makes with `os.fork` and lets return."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TypeVar

from ..logs import get_logger

logger = get_logger(__name__)

T = TypeVar("T")


def call_here(call: Callable[[], T]) -> T:
    """Call a function, and return from it in this process only."""
    pid = os.getpid()
    try:
        return call()
    finally:
        end_copy(pid)


def end_copy(pid: int) -> None:
    """End this process if it is not `pid` but a copy of it.

    The copy has one thread, and the same sockets: it would write this run's ending into another's conversation with
    the server, or wait for ever and keep the sockets open.
    """
    if os.getpid() != pid:
        with contextlib.suppress(Exception):
            logger.error("task.forked pid=%d parent=%d", os.getpid(), pid)
        os._exit(1)
