"""What unfinished jobs wait for, on Django's connection: counted, or told of single jobs by the same rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connections

from ..sql import load
from .viewing import read_only

COUNTED_AT_MOST = 100_000
TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Standing:
    """How many unfinished jobs stand where, and how long the longest of them should have gone on already.

    `name` is one of due, runs_alone, scheduled, queue_paused, jobs_paused, task_unknown, queue_unserved, key_busy,
    key_blocked, limit_reached, rate_spent, leased, lease_expired, held, probed, needs_a_person; `overdue_seconds` is
    None where none is overdue.
    """

    name: str
    jobs: int
    overdue_seconds: float | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Where one waiting job stands, by the names of `Standing`.

    `waits_for` is the queue or the limit that holds it up (`tenant:acme`), the task that no worker knows, or the number
    of the job in front of it; None where nothing else does.
    """

    standing: str
    waits_for: str | None


def count_standing(alias: str, *, cap: int = COUNTED_AT_MOST) -> list[Standing]:
    """Return where unfinished jobs stand; at most `cap` waiting rows are looked at."""
    with read_only(alias, timeout_seconds=TIMEOUT_SECONDS):
        return standings(alias, cap=cap)


def standings(alias: str, *, cap: int) -> list[Standing]:
    """Do what `count_standing` does within the caller's transaction and its bounds."""
    return [Standing(name, jobs, overdue) for name, _, _, jobs, overdue in _rows(alias, None, cap)]


def waits_of(alias: str, ids: Sequence[int]) -> dict[int, Wait]:
    """Return where single waiting jobs stand, by their ids; those that do not wait are left out."""
    return {id: Wait(name, waits_for) for name, id, waits_for, _, _ in _rows(alias, list(ids), len(ids)) if id}


def _rows(alias: str, ids: list[int] | None, cap: int) -> list[tuple[str, int | None, str | None, int, float | None]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(load("count_standing"), {"cap": cap, "ids": ids})
        rows: list[tuple[str, int | None, str | None, int, float | None]] = cursor.fetchall()
        return rows
