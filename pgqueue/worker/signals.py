"""SIGTERM and SIGINT: the first drains, the second leaves at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .inbox import Inbox, Signal

HANDLED = (signal.SIGTERM, signal.SIGINT)
EXIT_FORCED = 1


@contextmanager
def stop_signals(inbox: Inbox) -> Iterator[None]:
    """Turn stop signals into mail. What a forced exit leaves behind is taken over once its leases run out."""
    received = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received > 1:
            os._exit(EXIT_FORCED)
        inbox.put(Signal.STOP)

    before: dict[int, Any] = {number: signal.signal(number, handle) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
