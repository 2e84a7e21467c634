"""Everything that the dispatcher is told comes through here, in order."""

from __future__ import annotations

import queue
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from ..protocol.settling import Ending


class Signal(Enum):
    """What is not an ending."""

    WAKE = "wake"
    """New work may be due."""
    ENDED = "ended"
    """There is an ending, the first since the last look."""
    RESTED = "rested"
    """A thread has nothing more to run, or soon will: there is room, and nothing to wait for."""
    STOP = "stop"
    """Drain and end."""
    STUCK = "stuck"
    """A run that nothing could stop: drain around it and end, so that it ends too."""
    LEASES_RAN_OUT = "leases_ran_out"
    """This process was frozen for longer than its leases: drain and end."""
    NO_CONNECTION = "no_connection"
    """The dispatcher gets no connection, though the heartbeat has one: drain and end."""
    THREAD_GONE = "thread_gone"
    """A thread has vanished, with whatever it held: drain and end."""
    LOOP_DIED = "loop_died"
    """The event loop cannot go on: drain around it and end."""


UNFIT = frozenset({Signal.LEASES_RAN_OUT, Signal.NO_CONNECTION, Signal.THREAD_GONE, Signal.LOOP_DIED})
"""Signals that say that this process cannot work any more; each value is the reason that is logged."""


@dataclass(slots=True)
class Mail:
    """What was in the inbox at one look."""

    endings: list[Ending] = field(default_factory=list)
    signals: set[Signal] = field(default_factory=set)


class Inbox:
    """Filled by threads and signal handlers: `SimpleQueue.put` may interrupt itself.

    Endings lie in a deque beside the signals: whoever adds one wakes the dispatcher only if it sleeps and was not
    woken yet, since a wake-up for each would cost more than a short job.
    """

    def __init__(self) -> None:
        self._signals: queue.SimpleQueue[Signal] = queue.SimpleQueue()
        self._endings: deque[Ending] = deque()
        self._wants_first = False
        self.has_stop_signal = False
        """Whether somebody outside has told this process to end: then it is not to start anew."""

    def put(self, signal: Signal) -> None:
        """Tell the dispatcher something, and wake it."""
        self._signals.put(signal)

    def add(self, ending: Ending) -> None:
        """Tell the dispatcher of an ending."""
        self._endings.append(ending)
        if self._wants_first:
            self._wants_first = False
            self._signals.put(Signal.ENDED)

    def has(self, count: int) -> bool:
        """Say whether so many endings lie here."""
        return len(self._endings) >= count

    def take(self, *, timeout_seconds: float) -> Mail:
        """Wait for a signal or an ending, at most so long, and return it with all others that are there."""
        self._wants_first = True
        # Looked at after the flag was set: an ending that came before it rings no bell.
        signals = self._wait(0.0 if self._endings else timeout_seconds)
        self._wants_first = False
        return Mail(self._collect(), signals)

    def linger(self, mail: Mail, *, seconds: float) -> None:
        """Let endings gather for so long, or until a signal comes, and add them."""
        mail.signals |= self._wait(seconds)
        mail.endings += self._collect()

    def _wait(self, seconds: float) -> set[Signal]:
        signals: set[Signal] = set()
        try:
            signals.add(self._signals.get(timeout=seconds) if seconds > 0 else self._signals.get_nowait())
            while True:
                signals.add(self._signals.get_nowait())
        except queue.Empty:
            return signals

    def _collect(self) -> list[Ending]:
        endings: list[Ending] = []
        try:
            while True:
                endings.append(self._endings.popleft())
        except IndexError:
            return endings
