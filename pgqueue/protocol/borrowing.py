"""Use Django's own connection for the protocol, inside the transaction that is open on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import psycopg
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

from ..sql import load
from .cleaning import clean
from .through_django import DjangoConnection
from .wrappers import may_be_bypassed

T = TypeVar("T")


def beneath(alias: str) -> psycopg.Connection[Any]:
    """Return the psycopg connection beneath Django's, for one statement in the transaction that is open there.

    Where Django's wrapper must not be bypassed, return what sends statements through its cursor.
    Raise `TransactionManagementError` when that transaction is aborted.
    """
    wrapper = connections[alias]
    wrapper.ensure_connection()
    _refuse_aborted(wrapper)
    return cast(
        "psycopg.Connection[Any]", wrapper.connection if may_be_bypassed(wrapper) else DjangoConnection(wrapper)
    )


def has_begun(alias: str) -> bool:
    """Return whether anything was sent in the transaction that Django has announced, or has gone wrong in it.

    Of a wrapper that must not be bypassed nobody can tell: it counts as begun.
    """
    wrapper = connections[alias]
    is_whole = wrapper.connection is not None and not wrapper.needs_rollback and may_be_bypassed(wrapper)
    return not is_whole or wrapper.connection.info.transaction_status != TransactionStatus.IDLE


@contextmanager
def borrowed(alias: str) -> Iterator[psycopg.Connection[Any]]:
    """Lend the psycopg connection beneath Django's. Whose transaction is open stays as it is.

    Where Django's wrapper must not be bypassed, lend what sends statements through its cursor.
    Raise `TransactionManagementError` when that transaction is aborted.
    """
    connection = beneath(alias)
    if connections[alias].get_autocommit():
        yield connection
        return
    with connection.cursor(row_factory=dict_row) as cursor:
        # This also begins the transaction that Django has only announced: psycopg would begin and commit its own.
        guards = cursor.execute(load("read_guards")).fetchone()
    try:
        yield connection
    finally:
        if connection.info.transaction_status == TransactionStatus.INTRANS:
            connection.execute(load("restore_guards"), guards)


def isolated(alias: str, work: Callable[[], T]) -> tuple[T, bool]:
    """Do work that may abort the transaction or leave blocks open; return what it returned, and whether it aborted.

    What it wrote is then rolled back to where it began, its hooks with it, and the transaction around it can go on.
    In autocommit there is none to protect: a block left open is discarded with the connection, as in a worker.
    Raise `TransactionManagementError` when the work closed the connection, and so ended the transaction.
    """
    wrapper = connections[alias]
    return _in_autocommit(wrapper, work) if wrapper.get_autocommit() else _in_savepoint(wrapper, work)


def _in_autocommit(wrapper: BaseDatabaseWrapper, work: Callable[[], T]) -> tuple[T, bool]:
    result = work()
    is_whole = wrapper.connection is None or (
        not wrapper.in_atomic_block and wrapper.connection.info.transaction_status == TransactionStatus.IDLE
    )
    if not is_whole:
        clean(wrapper)
    return result, False


def _in_savepoint(wrapper: BaseDatabaseWrapper, work: Callable[[], T]) -> tuple[T, bool]:
    connection: psycopg.Connection[Any] = wrapper.connection
    hooks, savepoints, blocks = list(wrapper.run_on_commit), list(wrapper.savepoint_ids), list(wrapper.atomic_blocks)
    # Not one of Django's blocks: it would forbid durable ones inside, and count among the test's queries.
    with connection.transaction() as savepoint:
        result = work()
        if connection.closed:
            raise TransactionManagementError(
                "The task closed the database connection, and with it ended the transaction of the test. "
                "Test it with TransactionTestCase or django_db(transaction=True)."
            )
        left_open = wrapper.savepoint_ids != savepoints
        aborted = _is_aborted(wrapper)
        if left_open or aborted:
            wrapper.run_on_commit, wrapper.savepoint_ids, wrapper.atomic_blocks = hooks, savepoints, blocks
            wrapper.needs_rollback = False
            savepoint.force_rollback = True
    return result, aborted and not left_open


def _refuse_aborted(wrapper: BaseDatabaseWrapper) -> None:
    if _is_aborted(wrapper):
        raise TransactionManagementError(
            "No job can run: an earlier database error aborted the transaction of the test. Put the statement that "
            "is meant to fail into an atomic block of its own."
        )


def _is_aborted(wrapper: BaseDatabaseWrapper) -> bool:
    return wrapper.needs_rollback or wrapper.connection.info.transaction_status == TransactionStatus.INERROR
