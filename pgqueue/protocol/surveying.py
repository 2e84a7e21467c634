"""Figures for people, on Django's connection: capped counts of what is unfinished, and what workers have counted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connections

from ..sql import load

COUNTED_AT_MOST = 10_000
SILENT_WITHIN_SECONDS = 86_400.0
"""A worker silent for longer than a day is history."""


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
    slots: int
    table_estimate: int
    at: datetime

    @property
    def waiting_is_capped(self) -> bool:
        """Say whether there are more waiting jobs than were looked at."""
        return self.waiting > COUNTED_AT_MOST


@dataclass(frozen=True, slots=True)
class Silent:
    """A worker that has missed a whole lease. `expiry_seconds` is negative once its first lease is over."""

    id: int
    host: str
    pid: int
    silent_seconds: float
    leases: int
    expiry_seconds: float | None


def live(alias: str) -> Live:
    """Count unfinished jobs."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("count_live"), {"cap": COUNTED_AT_MOST + 1})
        row = dict(zip([column.name for column in cursor.description], cursor.fetchone(), strict=True))
    # Django hands out JSON as text.
    alone = None if row["alone"] is None else json.loads(row["alone"])
    return Live(**{**row, "paused": json.loads(row["paused"]), "alone": alone})


def by_queue(alias: str) -> dict[str, dict[str, tuple[int, float]]]:
    """Return of each queue and state the number of jobs, and how many seconds ago the oldest became due.

    State `ended` counts those that ended within five minutes.
    """
    found: dict[str, dict[str, tuple[int, float]]] = {}
    for queue, state, jobs, seconds in _rows(alias, "count_by_queue", {"cap": COUNTED_AT_MOST + 1}):
        found.setdefault(queue, {})[state] = (jobs, seconds)
    return found


def silent(alias: str) -> list[Silent]:
    """Return the workers that have fallen silent within a day."""
    return [Silent(*row) for row in _rows(alias, "list_silent", {"within_seconds": SILENT_WITHIN_SECONDS})]


def minutes(alias: str, *, step_seconds: float, steps: int) -> list[tuple[int, str, int]]:
    """Return (steps back from now, outcome, jobs)."""
    return _rows(alias, "read_minutes", {"step_seconds": step_seconds, "steps": steps})


def histograms(alias: str, *, step_seconds: float, steps: int) -> list[tuple[int, int, int, int]]:
    """Return (steps back from now, bucket from 1 on, jobs that waited so long, jobs that ran so long)."""
    return _rows(alias, "read_histograms", {"step_seconds": step_seconds, "steps": steps})


def failures(alias: str) -> list[tuple[str, int, int, int, int]]:
    """Return (error class, jobs within 1 h, 3 h, 24 h, 7 d)."""
    return _rows(alias, "read_failures", {})


def _rows(alias: str, statement: str, params: Mapping[str, Any]) -> list[Any]:
    with connections[alias].cursor() as cursor:
        cursor.execute(load(statement), params)
        rows: list[Any] = cursor.fetchall()
        return rows
