"""How much to hold in advance: what the threads finish in a moment, and never less than one job each."""

from __future__ import annotations

SMOOTHING = 0.2


class Pace:
    """Follows how long jobs run, and says how many are worth holding."""

    def __init__(self, *, threads: int, prefetch_seconds: float, batch_size: int) -> None:
        self._threads = threads
        self._prefetch_seconds = prefetch_seconds
        self._batch_size = max(batch_size, threads)
        self._mean_seconds = prefetch_seconds

    def note(self, run_seconds: float) -> None:
        """Take in how long a job ran."""
        self._mean_seconds += SMOOTHING * (run_seconds - self._mean_seconds)

    def slow_down(self, run_seconds: float) -> None:
        """Take it that jobs run at least so long, until some have ended."""
        self._mean_seconds = max(self._mean_seconds, run_seconds)

    def target(self) -> int:
        """Return how many leases to hold at most."""
        worth_holding = self._threads * self._prefetch_seconds / max(self._mean_seconds, 1e-9)
        return int(max(self._threads, min(self._batch_size, worth_holding)))
