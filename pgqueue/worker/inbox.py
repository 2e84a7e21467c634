"""Everything that the dispatcher is told comes through one queue, in order."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from enum import Enum

from ..protocol.settling import Ending


class Signal(Enum):
    """What is not an ending."""

    WAKE = "wake"
    """New work may be due."""
    NOTICE_GIVEN = "notice_given"
    """A thread is free again without an ending: perhaps it was all that a burst or a drain waited for."""
    STOP = "stop"
    """Drain and end."""
    STUCK = "stuck"
    """A run that nothing could stop: drain around it and end, so that it ends too."""
    LEASES_RAN_OUT = "leases_ran_out"
    """This process was frozen for longer than its leases: drain and end."""


@dataclass(slots=True)
class Mail:
    """What was in the inbox at one look."""

    endings: list[Ending] = field(default_factory=list)
    signals: set[Signal] = field(default_factory=set)


class Inbox:
    """Filled by threads and signal handlers: `SimpleQueue.put` may interrupt itself."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Ending | Signal] = queue.SimpleQueue()

    def put(self, item: Ending | Signal) -> None:
        """Tell the dispatcher something."""
        self._queue.put(item)

    def take(self, *, timeout_seconds: float) -> Mail:
        """Wait for the first item, at most so long, and return it with all others that are there."""
        mail = Mail()
        try:
            item = self._queue.get(timeout=timeout_seconds) if timeout_seconds > 0 else self._queue.get_nowait()
            while True:
                if isinstance(item, Signal):
                    mail.signals.add(item)
                else:
                    mail.endings.append(item)
                item = self._queue.get_nowait()
        except queue.Empty:
            return mail
