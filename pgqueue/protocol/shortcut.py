"""Send what an enqueue writes past Django and most of the driver, where only the clock can tell.

That is in autocommit, on a connection that lasts, straight to the server, while nobody counts, wraps or logs what
Django sends: `execute_wrapper`, `assertNumQueries`, debug toolbars and tracers see every enqueue as before. A wrapper
of another backend is never bypassed: its cursor may choose the tenant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.conf import settings
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.utils import CursorWrapper
from psycopg.errors import InvalidSqlStatementName
from psycopg.pq import TransactionStatus

from .connecting import is_direct
from .preparing import IS_POSSIBLE, execute_prepared
from .wrappers import is_djangos, may_be_bypassed

LASTING = 5
"""Enqueues after which a connection is taken to last: one that is made for a request sends fewer."""

_counts: WeakKeyDictionary[psycopg.Connection[Any], int] = WeakKeyDictionary()
_NEVER = -1


def send_quickly(wrapper: BaseDatabaseWrapper, query: str, params: Mapping[str, Any]) -> bytes | None:
    """Execute a statement that is its own transaction; return its row as `execute_prepared` does.

    None: nothing was sent, or nothing is done, and the caller sends it in the ordinary way.
    """
    connection = _lasting(wrapper)
    if connection is None:
        return None
    try:
        return execute_prepared(connection, query, params)
    except InvalidSqlStatementName:
        return None  # The session was discarded under it.
    except psycopg.Error:
        with wrapper.wrap_database_errors:
            raise


def _lasting(wrapper: BaseDatabaseWrapper) -> psycopg.Connection[Any] | None:
    if wrapper.in_atomic_block or _is_watched(wrapper):
        return None
    wrapper.validate_thread_sharing()
    wrapper.close_if_health_check_failed()
    if not wrapper.get_autocommit():
        return None
    connection: psycopg.Connection[Any] = wrapper.connection
    is_free = connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE
    return connection if is_free and _lasts(wrapper, connection) else None


def _lasts(wrapper: BaseDatabaseWrapper, connection: psycopg.Connection[Any]) -> bool:
    count = _counts.get(connection, 0)
    if 0 <= count < LASTING:
        _counts[connection] = count + 1
    elif count == LASTING:
        count = _counts[connection] = LASTING + 1 if _can_be_passed_by(wrapper) else _NEVER
    return count > LASTING


def _is_watched(wrapper: BaseDatabaseWrapper) -> bool:
    return wrapper.queries_logged or not may_be_bypassed(wrapper) or not is_djangos(CursorWrapper.execute)


def _can_be_passed_by(wrapper: BaseDatabaseWrapper) -> bool:
    """Say whether no pooler stands in between, and nobody between Django and the driver to see what is sent."""
    connection = wrapper.connection
    return (
        IS_POSSIBLE
        and type(connection) is psycopg.Connection
        and connection.cursor_factory.__module__ == "django.db.backends.postgresql.base"
        and settings.USE_TZ
        and wrapper.timezone_name == "UTC"
        and is_direct(connection)
    )
