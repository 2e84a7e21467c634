"""How much to hold in advance: what the slots finish in a moment, and never less than one job each."""

from __future__ import annotations

from enum import Enum

SMOOTHING = 0.2


class Pool(Enum):
    """Where jobs run: functions on threads, coroutine functions on an event loop."""

    THREADS = "threads"
    LOOP = "loop"


class Pace:
    """Follows how long jobs run, and says how many are worth holding."""

    def __init__(self, *, slots: int, prefetch_seconds: float, batch_size: int) -> None:
        self.slots = slots
        self._prefetch_seconds = prefetch_seconds
        self._batch_size = max(batch_size, slots)
        self._mean_seconds = prefetch_seconds

    def note(self, run_seconds: float) -> None:
        """Take in how long a job ran."""
        self._mean_seconds += SMOOTHING * (run_seconds - self._mean_seconds)

    def slow_down(self, run_seconds: float) -> None:
        """Take it that jobs run at least so long, until some have ended."""
        self._mean_seconds = max(self._mean_seconds, run_seconds)

    def target(self) -> int:
        """Return how many leases to hold at most."""
        worth_holding = self.slots * self._prefetch_seconds / max(self._mean_seconds, 1e-9)
        return int(max(self.slots, min(self._batch_size, worth_holding)))
