"""What this process ended, counted in memory and added to the minute's figures now and then."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import psycopg

from ..protocol.taking_over import Taken
from ..protocol.tallying import add_minute_stats
from .finishing import Finished

FLUSH_SECONDS = 10.0
PRUNE_EVERY = 360
"""Flushes between two looks for what is too old: an hour's."""
MOST_BUCKETS = 32
MOST_KINDS = 1_000
"""More kinds of endings than these within ten seconds are not told apart."""


def bucket(seconds: float) -> int:
    """Return the histogram's bucket: 0 up to a millisecond, each further one twice as long."""
    return min(max(0, (max(0, int(seconds * 1000) - 1)).bit_length()), MOST_BUCKETS - 1)


class Tally:
    """Counts endings. Figures are for people: a lost process takes at most ten seconds of them with it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[tuple[str, str, str, str], dict[str, Any]] = {}
        self._flush_at = clock() + FLUSH_SECONDS
        self._flushes = 0

    def note(self, ended: Sequence[Finished]) -> None:
        """Count written endings."""
        for one in ended:
            failure = one.ending.failure
            error = "" if failure is None else failure.description.class_path
            waited = (one.written.at - one.lease.run_at).total_seconds() - one.ending.run_seconds
            kind = self._kind(one.lease.queue, one.lease.task, str(one.written.state), error)
            _count(kind, waited, one.ending.run_seconds)

    def note_taken(self, taken: Sequence[Taken]) -> None:
        """Count jobs taken over; how long they ran nobody knows."""
        for one in taken:
            self._kind(one.job.queue, one.job.task, str(one.verdict.target), "")["jobs"] += 1

    def flush(self, connection: psycopg.Connection[Any], *, at_once: bool = False) -> None:
        """Write what was counted, if it is time. What cannot be written is kept for the next time."""
        if not self._kinds or (self._clock() < self._flush_at and not at_once):
            return
        self._flush_at = self._clock() + FLUSH_SECONDS
        try:
            add_minute_stats(connection, list(self._kinds.values()), prune=self._flushes % PRUNE_EVERY == 0)
        except psycopg.Error:
            return
        self._flushes += 1
        self._kinds.clear()

    def _kind(self, queue: str, task: str, outcome: str, error: str) -> dict[str, Any]:
        if len(self._kinds) >= MOST_KINDS:
            error = ""
        kind = self._kinds.get((queue, task, outcome, error))
        if kind is None:
            kind = {"queue": queue, "task": task, "outcome": outcome, "error": error}
            kind |= {"jobs": 0, "waits": [], "runs": []}
            self._kinds[queue, task, outcome, error] = kind
        return kind


def _count(kind: dict[str, Any], waited: float, ran: float) -> None:
    kind["jobs"] += 1
    for name, seconds in (("waits", waited), ("runs", ran)):
        place, histogram = bucket(seconds), kind[name]
        histogram.extend([0] * (place + 1 - len(histogram)))
        histogram[place] += 1
