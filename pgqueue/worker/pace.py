"""How much to hold in advance: what the slots finish in a moment, and never less than one job each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from .. import conf

SMOOTHING = 0.2
MOST_BYTES = 64 * 1024 * 1024
"""Arguments to hold in advance: as many jobs as have so much, as far as the latest ones tell."""
SHORT_SECONDS = 0.0002
"""Jobs that run for less than this hold the interpreter rather than wait for something."""


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
        self._mean_bytes = 0.0

    def note_bytes(self, size: int, *, jobs: int) -> None:
        """Take in how much the arguments of jobs take that were claimed together."""
        self._mean_bytes = max(size / jobs, self._mean_bytes * (1 - SMOOTHING))

    def note(self, run_seconds: float) -> None:
        """Take in how long a job ran."""
        self._mean_seconds += SMOOTHING * (run_seconds - self._mean_seconds)

    def crew(self) -> int:
        """Return how many slots are to share what is handed out: one thread runs short jobs as fast as many do."""
        return 1 if self._mean_seconds < SHORT_SECONDS else self.slots

    def slow_down(self, run_seconds: float) -> None:
        """Take it that jobs run at least so long, until some have ended."""
        self._mean_seconds = max(self._mean_seconds, run_seconds)

    def target(self) -> int:
        """Return how many leases to hold at most."""
        worth_holding = self.slots * self._prefetch_seconds / max(self._mean_seconds, 1e-9)
        if self._mean_bytes * worth_holding > MOST_BYTES:
            worth_holding = min(worth_holding, MOST_BYTES / self._mean_bytes)
        return int(max(self.slots, min(self._batch_size, worth_holding)))


def paces_of(slots: Mapping[Pool, int]) -> dict[Pool, Pace]:
    """Return a pace for each pool. On the loop everything that is held runs: nothing is held in advance."""
    settings = conf.current()
    return {
        pool: Pace(
            slots=count,
            prefetch_seconds=settings.prefetch_seconds,
            batch_size=settings.batch_size if pool is Pool.THREADS else count,
        )
        for pool, count in slots.items()
    }


def crew_of(paces: Mapping[Pool, Pace]) -> int:
    """Return how many threads are to share what is handed out."""
    pace = paces.get(Pool.THREADS)
    return 1 if pace is None else pace.crew()
