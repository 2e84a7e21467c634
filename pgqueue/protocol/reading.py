"""Read a job and its attempts, for results; always where jobs are written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db import connections

from ..sql import load


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as it stands. `args`, `kwargs` and `result` are JSON texts, None where there is none."""

    id: int
    task: str
    state: str
    queue: str
    priority: int
    fence: int
    attempts: int
    worker_id: int | None
    settled_by: int | None
    created_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    args: str | None
    kwargs: str | None
    result: str | None
    is_purged: bool = False


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One recorded attempt."""

    fence: int
    worker_id: int | None
    claimed_at: datetime | None
    started_at: datetime | None
    outcome: str
    error_class: str | None
    traceback: str


def read_job(alias: str, id: int) -> tuple[JobRow, list[AttemptRow]] | None:
    """Return a job and its recorded attempts, oldest first; None when there is no such job."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("read_job"), {"id": id})
        row = cursor.fetchone()
        if row is None:
            return None
        cursor.execute(load("read_attempts"), {"id": id})
        return JobRow(*row), [AttemptRow(*attempt) for attempt in cursor.fetchall()]
