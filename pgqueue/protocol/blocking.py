"""Find who holds the row of a job that is to be taken over, and end the session if it can do nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from django.db import connections
from psycopg.rows import args_row

from .. import conf
from ..sql import load
from .connecting import transaction

MOST = 100
TOLD_AFTER_SECONDS = 5.0
"""How long a lease must have run out before people are told: until then workers may well take the job over."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A session that holds the row of a job whose lease has run out. What this role may not see of it is None."""

    job_id: int
    fence: int
    expired_seconds: float
    pid: int
    role: str | None
    state: str | None
    state_seconds: float | None
    ended: bool


def end_blockers(connection: psycopg.Connection[Any]) -> list[Blocker]:
    """End sessions that have written a completion and idle in its transaction; return all that hold such rows."""
    with (
        transaction(connection, timeout_seconds=conf.current().claim_timeout_seconds),
        connection.cursor(row_factory=args_row(Blocker)) as cursor,
    ):
        return cursor.execute(load("find_blockers"), _asked(expired_seconds=0.0, ends=True)).fetchall()


def list_blockers(alias: str) -> list[Blocker]:
    """Return the sessions that hold rows of jobs whose lease ran out some time ago."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("find_blockers"), _asked(expired_seconds=TOLD_AFTER_SECONDS, ends=False))
        return [Blocker(*row) for row in cursor.fetchall()]


def _asked(*, expired_seconds: float, ends: bool) -> dict[str, Any]:
    return {"expired_seconds": expired_seconds, "ends": ends, "limit": MOST}
