"""What tests of applications do to jobs: name them, claim a certain one, and let time pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

from .. import conf
from ..sql import load
from .claiming import Claimant, Lease, lease_cursor
from .connecting import transaction


def list_due(connection: psycopg.Connection[Any], *, tasks: Sequence[str], queues: Sequence[str] | None) -> list[int]:
    """Return ids of due jobs, the most urgent first; None is every queue."""
    rows = connection.execute(load("list_due"), _wanted(tasks, queues)).fetchall()
    return [id for (id,) in rows]


def bring_forward(connection: psycopg.Connection[Any], *, tasks: Sequence[str], queues: Sequence[str] | None) -> bool:
    """Make the next future job due, and say whether there was one."""
    return connection.execute(load("bring_forward"), _wanted(tasks, queues)).fetchone() is not None


def expire(connection: psycopg.Connection[Any], id: int) -> bool:
    """Let a running job's lease have run out, and say whether it was running."""
    return connection.execute(load("expire_lease"), {"id": id}).fetchone() is not None


def claim_one(connection: psycopg.Connection[Any], claimant: Claimant, id: int) -> Lease | None:
    """Claim a certain job, if it can be claimed now. One statement serves all lanes: nobody competes here."""
    with (
        transaction(connection, timeout_seconds=conf.current().claim_timeout_seconds),
        lease_cursor(connection) as cursor,
    ):
        # No limits are locked, and so none is refused for not being locked.
        params = {**claimant.params(), "ids": [id], "locked": None}
        return cursor.execute(load("claim_picked"), params).fetchone()


def _wanted(tasks: Sequence[str], queues: Sequence[str] | None) -> dict[str, Any]:
    return {"tasks": list(tasks), "queues": None if queues is None else list(queues)}
