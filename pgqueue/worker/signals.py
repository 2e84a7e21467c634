"""SIGTERM and SIGINT: the first drains, the second leaves at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .exits import Exit
from .inbox import Inbox, Signal

HANDLED = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def stop_signals(inbox: Inbox, *, supervised: bool) -> Iterator[None]:
    """Turn stop signals into mail. What a forced exit leaves behind is taken over once its leases run out.

    A supervised process may get a signal twice, from a terminal or a service manager and from its supervisor: it
    only drains, and the supervisor kills it when it is to leave at once. It begins with these signals blocked.
    """
    received = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received > 1 and not supervised:
            os._exit(Exit.FORCED)
        inbox.has_stop_signal = True
        inbox.put(Signal.STOP)

    before: dict[int, Any] = {number: signal.signal(number, handle) for number in HANDLED}
    if supervised:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    try:
        yield
    finally:
        # A signal that comes while a supervised process ends must not look like its death.
        if not supervised:
            for number, handler in before.items():
                signal.signal(number, handler)
