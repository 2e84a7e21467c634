"""What this process ended, counted in memory and added to the minute's figures now and then."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psycopg

from ..protocol.claiming import Lease
from ..protocol.settling import Ending, Written
from ..protocol.taking_over import Taken
from ..protocol.tallying import add_minute_stats

FLUSH_SECONDS = 10.0
PRUNE_EVERY = 360
"""Flushes between two looks for what is too old: an hour's."""
MOST_BUCKETS = 32
MOST_KINDS = 1_000
"""More kinds of endings than these within ten seconds are not told apart."""


def bucket(seconds: float) -> int:
    """Return the histogram's bucket: 0 up to a millisecond, each further one twice as long."""
    return 0 if seconds < 0.002 else min((int(seconds * 1000) - 1).bit_length(), MOST_BUCKETS - 1)


class Tally:
    """Counts endings. Figures are for people: a lost process takes at most ten seconds of them with it."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kinds: dict[tuple[str, str, str, str], dict[str, Any]] = {}
        self._flush_at = clock() + FLUSH_SECONDS
        self._flushes = 0
        self._flushed: Counter[str] = Counter()

    def note(self, ended: Sequence[tuple[Lease, Ending]], written: Mapping[int, Written]) -> None:
        """Count endings that were written, given by job id."""
        # Hundreds have the same instant, and hundreds in a row are of one kind.
        at, epoch, latest, kind = None, 0.0, None, None
        for lease, ending in ended:
            if (one := written.get(lease.id)) is None:
                continue
            if one.at is not at:
                at, epoch = one.at, one.at.timestamp()
            told = (lease.queue, lease.task, one.state, ending.failure)
            if kind is None or told != latest:
                error = "" if ending.failure is None else ending.failure.description.class_path
                latest, kind = told, self._kind(lease.queue, lease.task, one.state.value, error)
            _count(kind, epoch - lease.run_epoch - ending.run_seconds, ending.run_seconds)

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
        self._flushed = self.outcomes()
        self._kinds.clear()

    def outcomes(self) -> Counter[str]:
        """Return how many attempts ended in each state since the start of this process."""
        outcomes = self._flushed.copy()
        for kind in self._kinds.values():
            outcomes[kind["outcome"]] += kind["jobs"]
        return outcomes

    def _kind(self, queue: str, task: str, outcome: str, error: str) -> dict[str, Any]:
        kind = self._kinds.get((queue, task, outcome, error))
        if kind is None and len(self._kinds) >= MOST_KINDS:
            error = ""
            kind = self._kinds.get((queue, task, outcome, error))
        if kind is None:
            kind = {"queue": queue, "task": task, "outcome": outcome, "error": error}
            kind |= {"jobs": 0, "waits": [], "runs": []}
            self._kinds[queue, task, outcome, error] = kind
        return kind


def _count(kind: dict[str, Any], waited: float, ran: float) -> None:
    kind["jobs"] += 1
    _add(kind["waits"], bucket(waited))
    _add(kind["runs"], bucket(ran))


def _add(histogram: list[int], place: int) -> None:
    try:
        histogram[place] += 1
    except IndexError:
        histogram.extend([0] * (place - len(histogram)))
        histogram.append(1)
