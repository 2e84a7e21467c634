"""Take jobs from owners whose lease has run out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg
from psycopg.rows import args_row

from .. import conf
from ..sql import load
from ..states import Lane, State
from .connecting import transaction
from .following import enqueue_on_dead, on

BATCH = 100
"""Jobs per takeover: a short transaction, also when a whole host was lost."""


@dataclass(frozen=True, slots=True)
class Expired:
    """A running job whose lease has run out, read under its lock."""

    id: int
    fence: int
    queue: str
    task: str
    recovery: str
    stage: str
    unknown_effects: int
    stop_requested: bool
    attempts: int
    max_attempts: int
    lease_losses: int
    lane: int
    worker_id: int
    replay_safe: bool
    parent_is_alive: bool | None = None
    """Whether the worker lives that had started this one as its quarantine; None without one."""


@dataclass(frozen=True, slots=True)
class Mine:
    """The jobs that the worker which takes over still runs itself."""

    worker_id: int
    ids: Sequence[int] = ()


NOBODYS = Mine(worker_id=0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Where a lost job goes, after which delay, and the sentence for people."""

    target: State
    delay_seconds: float
    message: str
    probe: bool = False
    lane: Lane = Lane.ALONE
    counts: bool = True
    """Whether the loss is the job's own, or may be a neighbour's fault."""


@dataclass(frozen=True, slots=True)
class Taken:
    """A job that was taken over."""

    job: Expired
    verdict: Verdict


def list_expired(connection: psycopg.Connection[Any], *, limit: int = BATCH) -> list[int]:
    """Return ids of running jobs whose lease has run out."""
    return [id for (id,) in connection.execute(load("list_expired"), {"limit": limit}).fetchall()]


def take_over(
    connection: psycopg.Connection[Any],
    ids: Sequence[int] | None,
    decide: Callable[[Expired], Verdict],
    *,
    limit: int = BATCH,
    mine: Mine = NOBODYS,
) -> list[Taken]:
    """Take over jobs whose lease has run out, those of `ids` or any, as `decide` says of the locked rows.

    `mine` are left to others.
    One transaction: nothing is half done if it is cut. Rows that somebody holds are left for the next look.
    """
    wanted = {
        "limit": limit,
        "ids": list_expired(connection) if ids is None else list(ids),
        "worker_id": mine.worker_id,
        "kept": list(mine.ids),
    }
    with (
        transaction(connection, timeout_seconds=conf.current().claim_timeout_seconds),
        connection.cursor(row_factory=args_row(Expired)) as cursor,
    ):
        locked = _with_parents(connection, cursor.execute(load("lock_expired"), wanted).fetchall())
        verdicts = {job.id: decide(job) for job in locked}
        if not locked:
            return []
        params = {
            "ids": [job.id for job in locked],
            "fences": [job.fence for job in locked],
            "stages": [job.stage for job in locked],
            "targets": [str(verdicts[job.id].target) for job in locked],
            "delay_seconds": [verdicts[job.id].delay_seconds for job in locked],
            "messages": [verdicts[job.id].message for job in locked],
            "probes": [verdicts[job.id].probe for job in locked],
            "lanes": [int(verdicts[job.id].lane) for job in locked],
            "counts": [verdicts[job.id].counts for job in locked],
        }
        rows = connection.execute(load("take_over"), params).fetchall()
        enqueue_on_dead(on(connection), [id for id, state in rows if state == State.DEAD])
    taken = {id for id, _ in rows}
    return [Taken(job, verdicts[job.id]) for job in locked if job.id in taken]


def _with_parents(connection: psycopg.Connection[Any], locked: Sequence[Expired]) -> list[Expired]:
    """Add whether the parents of the lost workers live, where that matters."""
    ids = sorted({job.worker_id for job in locked if job.lane == Lane.ALONE})
    if not ids:
        return list(locked)
    parents = dict(connection.execute(load("find_parents"), {"worker_ids": ids}).fetchall())
    return [replace(job, parent_is_alive=parents.get(job.worker_id)) for job in locked]
