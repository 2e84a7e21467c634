"""Figures for people, on Django's connection: capped counts of what is unfinished, and what workers have counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from django.db import connections

from ..sql import load

COUNTED_AT_MOST = 10_000
SILENT_WITHIN_SECONDS = 86_400.0
"""A worker silent for longer than a day is history."""
MISSED_WITHIN_SECONDS = 3600.0
"""One that holds nothing, and that nobody replaced within an hour, is not missed."""
COUNTED_BYTES = 32 * 2**20
"""A larger table is not counted: rows that are gone may have left millions of empty pages in front."""
STILL_DEAD_AT_MOST = 1_000
"""Dead jobs that are counted for one error."""
QUEUES_AT_MOST = 200
"""Queues beyond are not looked for."""


@dataclass(frozen=True, slots=True)
class Live:
    """Unfinished jobs. A count above `COUNTED_AT_MOST` means that there are more; `waiting` is the first three's."""

    waiting: int
    ready: int
    scheduled: int
    retrying: int
    oldest_ready_seconds: float | None
    running: int
    expired: int
    alone: dict[str, Any] | None
    """The job (id, task, worker) that has run alone in its worker for the longest."""
    unknown: int
    needs_a_person: int
    oldest_unknown_id: int | None
    oldest_unknown_task: str | None
    oldest_unknown_seconds: float | None
    held: int
    paused: list[dict[str, Any]]
    """Paused queues: name, by, reason, seconds since, left_seconds (None: no end)."""
    asked_for: list[dict[str, Any]]
    """What waits for approval and can still be approved: id, verb, kind, target, by, seconds; the oldest first."""
    slots: int
    table_rows: int | None
    """Exact unless above `COUNTED_AT_MOST`; None where the table is too large to count."""
    table_estimate: int | None
    """None as long as nobody has analysed the table."""
    at: datetime

    @property
    def waiting_is_capped(self) -> bool:
        """Say whether there are more waiting jobs than were looked at."""
        return self.waiting > COUNTED_AT_MOST


@dataclass(frozen=True, slots=True)
class Silent:
    """A worker that is missed: silent for a whole lease. `expiry_seconds` is negative once its first lease is over."""

    id: int
    host: str
    pid: int
    silent_seconds: float
    leases: int
    expiry_seconds: float | None


@dataclass(frozen=True, slots=True)
class Failures:
    """Jobs that one error ended, each within 1 h, 3 h, 24 h and 7 d: how often, and how many of them are dead now."""

    error: str
    jobs: tuple[int, ...]
    still_dead: tuple[int, ...] | None = None
    """At most `STILL_DEAD_AT_MOST` in all; None where they were not counted."""


@dataclass(frozen=True, slots=True)
class Named:
    """A queue with its pause, if it has one; `now` is the database's time."""

    name: str
    paused_at: datetime | None
    paused_until: datetime | None
    paused_by: str | None
    pause_reason: str | None
    now: datetime
    waiting_estimate: int | None


def live(alias: str) -> Live:
    """Count unfinished jobs."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("count_live"), {"cap": COUNTED_AT_MOST + 1, "counted_bytes": COUNTED_BYTES})
        row = dict(zip([column.name for column in cursor.description], cursor.fetchone(), strict=True))
    # Django hands out JSON as text.
    alone = None if row["alone"] is None else json.loads(row["alone"])
    told = {name: [_with_seconds(each) for each in json.loads(row[name])] for name in ("paused", "asked_for")}
    return Live(**{**row, **told, "alone": alone})


def _with_seconds(row: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: PostgreSQL writes it as a text."""
    return {**row, **{name: float(row[name]) for name in ("seconds", "left_seconds") if row.get(name) is not None}}


def by_queue(alias: str) -> dict[str, dict[str, tuple[int, float]]]:
    """Return of each queue and state the number of jobs, and how many seconds ago the oldest became due.

    State `ended` counts those that ended within five minutes; `unlisted` marks a queue that has jobs and no row.
    """
    found: dict[str, dict[str, tuple[int, float]]] = {}
    asked = {"cap": COUNTED_AT_MOST + 1, "most_queues": QUEUES_AT_MOST}
    for queue, state, jobs, seconds in _rows(alias, "count_by_queue", asked):
        found.setdefault(queue, {})[state] = (jobs, seconds)
    return found


def queues(alias: str) -> list[Named]:
    """Return the queues that have a row, or waiting or running jobs, by name."""
    found = _rows(alias, "list_queues", {"cap": COUNTED_AT_MOST + 1, "most": QUEUES_AT_MOST})
    return sorted((Named(*row) for row in found), key=lambda queue: queue.name)


def silent(alias: str) -> list[Silent]:
    """Return the workers that have fallen silent within a day and hold leases, or are missed."""
    asked = {"within_seconds": SILENT_WITHIN_SECONDS, "missed_within_seconds": MISSED_WITHIN_SECONDS}
    return [Silent(*row) for row in _rows(alias, "list_silent", asked)]


def minutes(alias: str, *, step_seconds: float, steps: int) -> list[tuple[int, str, int]]:
    """Return (steps back from now, outcome, jobs)."""
    return _rows(alias, "read_minutes", {"step_seconds": step_seconds, "steps": steps})


def histograms(alias: str, *, step_seconds: float, steps: int) -> list[tuple[int, int, int, int]]:
    """Return (steps back from now, bucket from 1 on, jobs that waited so long, jobs that ran so long)."""
    return _rows(alias, "read_histograms", {"step_seconds": step_seconds, "steps": steps})


def failures(alias: str) -> list[Failures]:
    """Return what ended jobs within a week, the most frequent error first; not how many of them are dead now."""
    return [Failures(error, tuple(jobs)) for error, *jobs in _rows(alias, "read_failures", {})]


def with_still_dead(alias: str, failed: list[Failures]) -> list[Failures]:
    """Return failures with the jobs that are dead now."""
    if not failed:
        return []
    asked = {"errors": [row.error for row in failed], "cap": STILL_DEAD_AT_MOST}
    still = {error: tuple(jobs) for error, *jobs in _rows(alias, "count_still_dead", asked)}
    return [replace(row, still_dead=still.get(row.error, (0, 0, 0, 0))) for row in failed]


def _rows(alias: str, statement: str, params: Mapping[str, Any]) -> list[Any]:
    with connections[alias].cursor() as cursor:
        cursor.execute(load(statement), params)
        rows: list[Any] = cursor.fetchall()
        return rows
