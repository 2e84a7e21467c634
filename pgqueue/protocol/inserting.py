"""Write new jobs on the caller's Django connection, inside its transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from django.db import connections

from ..sql import load


@dataclass(frozen=True, slots=True)
class NewJob:
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
    max_run_seconds: int | None = None
    parent_id: int | None = None


@dataclass(frozen=True, slots=True)
class Inserted:
    """A job that was inserted."""

    id: int
    created_at: datetime
    run_at: datetime


@dataclass(frozen=True, slots=True)
class Spent:
    """An operation key that an earlier enqueue spent, on which job, when, and with which arguments."""

    id: int
    created_at: datetime
    digest: str


def insert(alias: str, job: NewJob) -> Inserted:
    """Insert one job."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("enqueue"), asdict(job))
        return Inserted(*cursor.fetchone())


def insert_once(alias: str, job: NewJob, *, operation_key: str, digest: str) -> Inserted | Spent:
    """Insert one job under an operation key, or tell which job spent the key.

    Waits for another transaction that is spending the same key.
    """
    params = {**asdict(job), "operation_key": operation_key, "digest": digest}
    with connections[alias].cursor() as cursor:
        cursor.execute(load("enqueue_once"), params)
        row = cursor.fetchone()
        if row is not None:
            return Inserted(*row)
        cursor.execute(load("find_operation"), params)
        return Spent(*cursor.fetchone())


def insert_many(alias: str, jobs: Sequence[NewJob]) -> list[int]:
    """Insert jobs with one statement; return their ids in the same order."""
    params: dict[str, Any] = {
        "run_ats": [job.run_at for job in jobs],
        "priorities": [job.priority for job in jobs],
        "lanes": [job.lane for job in jobs],
        "max_attempts": [job.max_attempts for job in jobs],
        "max_run_seconds": [job.max_run_seconds for job in jobs],
        "queues": [job.queue for job in jobs],
        "tasks": [job.task for job in jobs],
        "recoveries": [job.recovery for job in jobs],
        "tenants": [job.tenant for job in jobs],
        "shard_keys": [job.shard_key for job in jobs],
        "args": [job.args for job in jobs],
        "kwargs": [job.kwargs for job in jobs],
    }
    with connections[alias].cursor() as cursor:
        cursor.execute(load("enqueue_many"), params)
        return [id for (id,) in cursor.fetchall()]


def notify(alias: str, queues: Sequence[str]) -> None:
    """Wake listening workers, on a connection that is in no transaction."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("notify"), {"queues": list(queues)})
