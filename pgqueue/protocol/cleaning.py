"""Give a Django connection back as a task found it."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from ..sql import load
from .wrappers import has_plain_sessions


class _Noting:
    """Mixed into the class of a connection's cursors: without a cursor nobody changes its session."""

    def __init__(self, connection: Any, *args: Any, **kwargs: Any) -> None:
        connection.pgqueue_is_clean = False
        super().__init__(connection, *args, **kwargs)  # type: ignore[call-arg]


def note_use(connection: BaseDatabaseWrapper) -> None:
    """Note from now on whether a connection is used, so that one that was not need not be cleaned."""
    if has_plain_sessions(type(connection)) and connection.vendor == "postgresql" and connection.connection is not None:
        raw = connection.connection
        raw.cursor_factory = _noting(raw.cursor_factory)
        raw.server_cursor_factory = _noting(raw.server_cursor_factory)
        raw.pgqueue_is_clean = True
        raw.pgqueue_wrappers = list(connection.execute_wrappers)


@cache
def _noting(cursors: type) -> type:
    return cursors if issubclass(cursors, _Noting) else type(cursors.__name__, (_Noting, cursors), {})


def give_back(connection: BaseDatabaseWrapper) -> None:
    """Leave nothing of a task on a thread's connection.

    What another backend keeps on its wrapper, such as a tenant, is not known here: close it, and have Django make
    another wrapper when the thread next asks for one. So does a wrapper that a task has left changed.
    """
    if not has_plain_sessions(type(connection)) or _is_changed(connection):
        discard(connection)
    else:
        connection.force_debug_cursor = False
        clean(connection)


def _is_changed(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a task left an `execute_wrapper` in force that was not there when the connection was made."""
    found = getattr(connection.connection, "pgqueue_wrappers", connection.execute_wrappers)
    return bool(found != connection.execute_wrappers)


def discard(connection: BaseDatabaseWrapper) -> None:
    """Close a thread's connection and forget its wrapper. A pool does not get the session back."""
    del connections[connection.alias]
    _forget_transaction(connection)
    if connection.connection is not None and _is_pooled(connection):
        connection.connection.close()
    connection.close()


def clean(connection: BaseDatabaseWrapper) -> None:
    """Discard a task's session state, or the connection with it.

    A connection that Django would keep, or give back to a pool, is cleaned when it is whole: a PostgreSQL one, in
    autocommit, in no transaction, after no error. Anything else is closed.
    """
    is_whole = _is_whole(connection)
    _forget_transaction(connection)
    if connection.connection is None:
        return
    pooled = _is_pooled(connection)
    if is_whole and (pooled or _is_lasting(connection)) and _discard_session(connection, pooled=pooled):
        if not pooled:
            connection.close_if_unusable_or_obsolete()
            return
    elif pooled:
        # A pool hands out again what it gets back open, with all that the task left in it.
        connection.connection.close()
    connection.close()


def _is_whole(connection: BaseDatabaseWrapper) -> bool:
    return (
        connection.connection is not None
        and connection.vendor == "postgresql"
        and connection.autocommit
        and not connection.in_atomic_block
        and not connection.errors_occurred
    )


def _is_pooled(connection: BaseDatabaseWrapper) -> bool:
    return bool(connection.settings_dict.get("OPTIONS", {}).get("pool"))


def _is_lasting(connection: BaseDatabaseWrapper) -> bool:
    return connection.close_at is None or connection.settings_dict["CONN_MAX_AGE"] > 0


def _forget_transaction(connection: BaseDatabaseWrapper) -> None:
    """Leave no block open, also on a connection that a task closed within one: Django would refuse to reopen it."""
    connection.in_atomic_block = False
    connection.savepoint_ids = []
    connection.needs_rollback = False
    connection.closed_in_transaction = False
    connection.run_on_commit = []


def _discard_session(connection: Any, *, pooled: bool) -> bool:
    """Say whether the session is as good as new. In a transaction that Django knows nothing of, it cannot be."""
    if getattr(connection.connection, "pgqueue_is_clean", False):
        return True
    try:
        with connection.cursor() as cursor:
            cursor.execute(load("discard_session"))
        if pooled:
            # Django leaves time zone and role of pooled connections to the pool, which sets them only once.
            connection._configure_connection(connection.connection)
        else:
            connection.init_connection_state()
    except Exception:
        return False
    connection.connection.pgqueue_is_clean = True
    return True
