"""Look at the queue on Django's connection: nothing can be written meanwhile, and nothing takes long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from django.db import OperationalError, connections, transaction

from ..sql import load

_CANCELLED = "57014"


@contextmanager
def read_only(alias: str, *, timeout_seconds: float) -> Iterator[None]:
    """Run reads in a transaction that refuses writes and bounds each statement, and roll it back."""
    with transaction.atomic(using=alias):
        with connections[alias].cursor() as cursor:
            cursor.execute(load("set_read_only"), {"timeout_ms": str(max(1, int(timeout_seconds * 1000)))})
        yield
        transaction.set_rollback(True, using=alias)


def has_argument_index(alias: str) -> bool:
    """Say whether a search for a keyword argument is answered by an index."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("find_argument_index"))
        return bool(cursor.fetchone()[0])


def database_now(alias: str) -> datetime:
    """Return the time by the database's clock, for what has no row to bring it along."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("read_now"))
        now: datetime = cursor.fetchone()[0]
        return now


def took_too_long(error: OperationalError) -> bool:
    """Say whether a statement was cancelled because its time was over."""
    return getattr(error.__cause__, "sqlstate", None) == _CANCELLED
