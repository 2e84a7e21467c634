"""Delete what ended long ago, on Django's connection."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connections

from ..sql import load


@dataclass(frozen=True, slots=True)
class Pruned:
    """One batch. `last_id` None: there was nothing left to look at."""

    last_id: int | None
    looked_at: int
    deleted: int


def prune(
    alias: str, *, after_id: int, limit: int, retention_seconds: float | None, dead_retention_seconds: float | None
) -> Pruned:
    """Delete jobs among the next ones by number; a retention of None keeps those for ever."""
    params = {
        "after_id": after_id,
        "limit": limit,
        "retention_seconds": retention_seconds,
        "dead_retention_seconds": dead_retention_seconds,
    }
    with connections[alias].cursor() as cursor:
        cursor.execute(load("prune_jobs"), params)
        return Pruned(*cursor.fetchone())
