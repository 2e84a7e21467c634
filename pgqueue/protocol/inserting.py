"""Write new jobs on the caller's Django connection, inside its transaction."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError, connections

from ..exceptions import UniqueKeyBusyError
from ..logs import get_logger
from ..sql import load
from .shortcut import send_quickly

logger = get_logger(__name__)

_ROW = struct.Struct("!qq?")
_MILLENNIUM = datetime(2000, 1, 1, tzinfo=UTC)
"""From which the server counts microseconds."""
HINT_REFUSED = ("54000", "42501", "22023")
"""No room for more notifications, no permission to notify, a name that no channel or payload can have."""
UNIQUE_ROUNDS = 10
"""How often a unique key is tried anew when the job that kept others out has ended meanwhile."""


class NewJob(NamedTuple):
    """A job to insert; `args` and `kwargs` are JSON texts, None where empty."""

    queue: str
    task: str
    args: str | None
    kwargs: str | None
    priority: int
    lane: int
    max_attempts: int
    recovery: str
    run_at: datetime | None = None
    """Earliest start; None is now by the database's clock."""
    tenant: str | None = None
    shard_key: str | None = None
    resource: str | None = None
    blocks_key: bool | None = None
    """True where the job, while it is unfinished, keeps younger ones of its key waiting; else None."""
    unique_key: str | None = None
    until_started: bool | None = None
    """True where the unique key keeps others out until the job is first claimed; None is until it has ended."""
    max_run_seconds: int | None = None
    on_dead: str | None = None
    """Name of the task that is enqueued when the job becomes dead."""
    parent_id: int | None = None

    def params(self, *, wakes: bool = False) -> dict[str, Any]:
        """Return the parameters of the statement that inserts it, and `wakes` workers as well."""
        return {**self._asdict(), "wakes": wakes}

    def is_bare(self) -> bool:
        """Say whether there are no arguments and no options."""
        return self.args is None and self.kwargs is None and self[-len(_NO_OPTIONS) :] == _NO_OPTIONS


_NO_OPTIONS = tuple(NewJob._field_defaults.values())


@dataclass(frozen=True, slots=True)
class Inserted:
    """A job that was inserted."""

    id: int
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Spent:
    """A key that an earlier enqueue took, for which job, and when. `digest` is of its arguments, for operation keys."""

    id: int
    created_at: datetime
    digest: str


def insert(alias: str, job: NewJob, *, wakes: bool = False) -> Inserted:
    """Insert one job; where that is a transaction by itself, it may wake workers: a hint apart would be another commit.

    What the server may have refused for the hint's sake is sent again without it.
    """
    try:
        return _insert(alias, job, wakes=wakes)
    except DatabaseError as error:
        if not wakes or getattr(error.__cause__, "sqlstate", None) not in HINT_REFUSED:
            raise
        inserted = _insert(alias, job, wakes=False)
        logger.warning("notify.failed queue=%s error=%s", job.queue, type(error).__name__)
        return inserted


def _insert(alias: str, job: NewJob, *, wakes: bool) -> Inserted:
    query, params = load("enqueue_bare" if job.is_bare() else "enqueue"), job.params(wakes=wakes)
    wrapper = connections[alias]
    row = send_quickly(wrapper, query, params)
    if row is not None:
        id, microseconds, _ = _ROW.unpack(row)
        return Inserted(id, _MILLENNIUM + timedelta(microseconds=microseconds))
    with wrapper.cursor() as cursor:
        cursor.execute(query, params)
        id, created_at, _ = cursor.fetchone()
    return Inserted(id, created_at)


def insert_once(alias: str, job: NewJob, *, operation_key: str, digest: str) -> Inserted | Spent:
    """Insert one job under an operation key, or tell which job spent the key.

    Waits for another transaction that is spending the same key.
    """
    params = {**job._asdict(), "operation_key": operation_key, "digest": digest}
    with connections[alias].cursor() as cursor:
        cursor.execute(load("enqueue_once"), params)
        row = cursor.fetchone()
        if row is not None:
            return Inserted(*row)
        cursor.execute(load("find_operation"), params)
        return Spent(*cursor.fetchone())


def insert_unique(alias: str, job: NewJob, *, replacing: bool) -> Inserted | Spent:
    """Insert one job under a unique key, or tell which job keeps it out, after `replacing` its arguments.

    Waits for another transaction that inserts or ends a job of the key. Raise `UniqueKeyBusyError` when jobs of the
    key came and went faster than they could be read.
    """
    params = job._asdict()
    with connections[alias].cursor() as cursor:
        for _ in range(UNIQUE_ROUNDS):
            cursor.execute(load("enqueue_unique"), params)
            if row := cursor.fetchone():
                return Inserted(*row)
            cursor.execute(load("replace_waiting" if replacing else "find_unique"), params)
            if row := cursor.fetchone():
                return Spent(row[0], row[1], digest="")
    raise UniqueKeyBusyError(job.task, str(job.unique_key))


def insert_in_window(alias: str, job: NewJob, *, window_seconds: float) -> Inserted | Spent:
    """Insert one job and open a window of its unique key, or tell which job's window has not ended.

    Waits for another transaction that is opening one.
    """
    params = {**job._asdict(), "window_seconds": window_seconds}
    with connections[alias].cursor() as cursor:
        cursor.execute(load("enqueue_in_window"), params)
        if row := cursor.fetchone():
            return Inserted(*row)
        cursor.execute(load("find_window"), params)
        id, created_at = cursor.fetchone()
        return Spent(id, created_at, digest="")


def insert_many(
    alias: str, jobs: Sequence[NewJob], *, args: Sequence[str | None], kwargs: Sequence[str | None]
) -> list[int]:
    """Insert jobs, whose arguments are given apart, with one statement; return their ids in the same order."""
    params: dict[str, Any] = {"count": len(jobs)}
    columns = zip(*(jobs[:1] if jobs.count(jobs[0]) == len(jobs) else jobs), strict=True)
    for name, column in (*zip(NewJob._fields, columns, strict=True), ("args", args), ("kwargs", kwargs)):
        is_common = column.count(column[0]) == len(column)
        params[name] = column[0] if is_common else None
        params[f"each_{name}"] = None if is_common else list(column)
    with connections[alias].cursor() as cursor:
        cursor.execute(load("enqueue_many"), params)
        return [id for (id,) in cursor.fetchall()]


def notify(alias: str, channel: str, payload: str) -> None:
    """Notify listening workers, on a connection that is in no transaction."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("notify"), {"channel": channel, "payloads": [payload]})
