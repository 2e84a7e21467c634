"""What this process ended, counted in memory until it is added to the minute's figures."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import psycopg

from ..protocol.claiming import Lease
from ..protocol.settling import Ending, Written
from ..protocol.taking_over import Taken
from ..protocol.tallying import add_minute_stats

MOST_BUCKETS = 32
LONGEST = 1e9
"""Seconds that fall into the last bucket. A row that was written by hand may be due since minus infinity."""
MOST_KINDS = 1_000
"""More kinds of endings than these between two writes are not told apart by their errors."""


def bucket(seconds: float) -> int:
    """Return the histogram's bucket: 0 up to a millisecond, each further one twice as long."""
    return 0 if seconds < 0.002 else min((int(min(seconds, LONGEST) * 1000) - 1).bit_length(), MOST_BUCKETS - 1)


Kinds = dict[tuple[str, str, str, str], dict[str, Any]]


class Tally:
    """Counts endings on one thread, which a second thread writes: a claim must not wait for a table of figures.

    Figures are for people. A lost process takes with it what was not written yet.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: Kinds = {}
        self._unwritten: Kinds = {}
        """Of the second thread: what it took, and could not write yet."""
        self._taken: Counter[str] = Counter()

    def note(self, ended: Sequence[tuple[Lease, Ending]], written: Mapping[int, Written]) -> None:
        """Count endings that were written, given by job id."""
        with self._lock:
            self._note(ended, written)

    def _note(self, ended: Sequence[tuple[Lease, Ending]], written: Mapping[int, Written]) -> None:
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
                latest, kind = told, _kind(self._kinds, (lease.queue, lease.task, one.state.value, error))
            _count(kind, epoch - lease.run_epoch - ending.run_seconds, ending.run_seconds)

    def note_taken(self, taken: Sequence[Taken]) -> None:
        """Count jobs taken over; how long they ran nobody knows."""
        with self._lock:
            for one in taken:
                _kind(self._kinds, (one.job.queue, one.job.task, str(one.verdict.target), ""))["jobs"] += 1

    def has_news(self) -> bool:
        """Return whether anything was counted that is not written yet."""
        return bool(self._kinds or self._unwritten)

    def flush(self, connection: psycopg.Connection[Any]) -> None:
        """Write what was counted. Raise `psycopg.Error` when it cannot be written: it is kept for the next time."""
        with self._lock:
            kinds, self._kinds = self._kinds, {}
            self._taken.update(_outcomes(kinds))
        for key, kind in kinds.items():
            _add_up(_kind(self._unwritten, key), kind)
        if self._unwritten:
            add_minute_stats(connection, list(self._unwritten.values()))
            self._unwritten = {}

    def outcomes(self) -> Counter[str]:
        """Return how many attempts ended in each state since the start of this process."""
        with self._lock:
            return self._taken + _outcomes(self._kinds)


def _outcomes(kinds: Kinds) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    for kind in kinds.values():
        outcomes[kind["outcome"]] += kind["jobs"]
    return outcomes


def _kind(kinds: Kinds, key: tuple[str, str, str, str]) -> dict[str, Any]:
    if key not in kinds and len(kinds) >= MOST_KINDS:
        key = (*key[:3], "")
    if (kind := kinds.get(key)) is None:
        kind = dict(zip(("queue", "task", "outcome", "error"), key, strict=True), jobs=0, waits=[], runs=[])
        kinds[key] = kind
    return kind


def _add_up(total: dict[str, Any], more: Mapping[str, Any]) -> None:
    total["jobs"] += more["jobs"]
    for name in ("waits", "runs"):
        counted = zip_longest(total[name], more[name], fillvalue=0)
        total[name] = [kept + added for kept, added in counted]


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
