"""Many rows at once for races, and what is compared before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.db import connection

from pgqueue.models import Job
from pgqueue.protocol.claiming import Claimant
from tests.factories import TASK, JobFactory, from_now

WORKER = -101
"""Who holds what `JobFactory(running=True)` makes."""

Snapshot = dict[int, tuple[str, str]]


def claimant(worker_id: int = WORKER, **options: Any) -> Claimant:
    """Return a worker that knows the one task of these rows."""
    return Claimant(**{"worker_id": worker_id, "tasks": (TASK,), "lease_seconds": 60.0, **options})


def add_jobs(count: int, *, vary: Callable[[int], Mapping[str, Any]] = lambda number: {}, **traits: Any) -> list[Job]:
    """Insert jobs in one statement, with ascending ids; traits are `JobFactory`'s, `vary` overrules them by number.

    The factory makes one, which is copied: it takes too long to make a thousand.
    """
    made = JobFactory.build(**traits)
    columns = {field.attname: getattr(made, field.attname) for field in Job._meta.concrete_fields}
    jobs = Job.objects.bulk_create(Job(**{**columns, **vary(number)}) for number in range(count))
    return list(Job.objects.filter(id__in=[job.id for job in jobs]).order_by("id"))


def expire(*ids: int) -> None:
    """Let leases run out, an hour ago."""
    Job.objects.filter(id__in=ids).update(lease_until=from_now(-3600))


def snapshot() -> Snapshot:
    """Return of each job its whole row as text and the transaction that wrote it: equal means not written."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT id, job::text, job.xmin::text FROM pgqueue_job AS job ORDER BY id")
        return {id: (row, xmin) for id, row, xmin in cursor.fetchall()}
