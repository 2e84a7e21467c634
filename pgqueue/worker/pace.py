"""How much to hold in advance: what the threads finish in a moment, and never less than one job each."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

SMOOTHING = 0.2


class Pace:
    """Follows how long jobs run, and says how many are worth holding."""

    def __init__(self, *, threads: int, prefetch_seconds: float, batch_size: int) -> None:
        self._threads = threads
        self._prefetch_seconds = prefetch_seconds
        self._batch_size = max(batch_size, threads)
        self._mean_seconds = prefetch_seconds

    def note(self, run_seconds: Iterable[float]) -> None:
        """Take in how long jobs ran."""
        for seconds in run_seconds:
            self._mean_seconds += SMOOTHING * (seconds - self._mean_seconds)

    def target(self) -> int:
        """Return how many leases to hold at most."""
        if self._mean_seconds * self._batch_size <= self._prefetch_seconds * self._threads:
            return self._batch_size
        return min(
            self._batch_size,
            max(self._threads, ceil(self._threads * self._prefetch_seconds / self._mean_seconds)),
        )
