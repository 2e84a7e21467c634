"""Look at the queue on Django's connection: nothing can be written meanwhile, and nothing takes long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from django.db import OperationalError, connections, transaction

from ..sql import load
from .tolerating import tolerant

_CANCELLED = "57014"


class TooSlowError(Exception):
    """A read was given up because its time was over."""


@contextmanager
def read_only(alias: str, *, timeout_seconds: float) -> Iterator[None]:
    """Run reads in a transaction that refuses writes and bounds each statement, and roll it back.

    Rows that were written by hand are read as far as Python can, as `tolerant` says.
    """
    with transaction.atomic(using=alias), tolerant(alias):
        with connections[alias].cursor() as cursor:
            cursor.execute(load("set_read_only"), {"timeout_ms": _milliseconds(timeout_seconds)})
        yield
        transaction.set_rollback(True, using=alias)


@contextmanager
def bounded(alias: str, *, timeout_seconds: float) -> Iterator[None]:
    """Run reads of a `read_only` transaction with a shorter bound, so that later ones go on whatever becomes of them.

    Raise `TooSlowError` when one of them took longer.
    """
    try:
        with transaction.atomic(using=alias):
            with connections[alias].cursor() as cursor:
                cursor.execute(load("set_statement_timeout"), {"timeout_ms": _milliseconds(timeout_seconds)})
            yield
            transaction.set_rollback(True, using=alias)
    except OperationalError as error:
        if not took_too_long(error):
            raise
        raise TooSlowError from error


def _milliseconds(seconds: float) -> str:
    # A timeout of 0 would wait for ever.
    return str(max(1, int(seconds * 1000)))


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
