"""Count unfinished jobs by what they wait for, on Django's connection."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connections

from ..sql import load
from .viewing import read_only

COUNTED_AT_MOST = 100_000
TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Standing:
    """How many unfinished jobs stand where, and how long the longest of them should have gone on already.

    `name` is one of due, scheduled, queue_paused, jobs_paused, task_unknown, key_busy, key_blocked, limit_reached,
    rate_spent, leased, lease_expired, held, probed, needs_a_person; `overdue_seconds` is None where none is overdue.
    """

    name: str
    jobs: int
    overdue_seconds: float | None


def count_standing(alias: str, *, cap: int = COUNTED_AT_MOST) -> list[Standing]:
    """Return where unfinished jobs stand; at most `cap` waiting rows are looked at."""
    with read_only(alias, timeout_seconds=TIMEOUT_SECONDS), connections[alias].cursor() as cursor:
        cursor.execute(load("count_standing"), {"cap": cap})
        return [Standing(*row) for row in cursor.fetchall()]
