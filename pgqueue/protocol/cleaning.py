"""Give a Django connection back as a task found it."""

from __future__ import annotations

from django.db.backends.base.base import BaseDatabaseWrapper

from ..sql import load


def clean(connection: BaseDatabaseWrapper) -> None:
    """Discard a task's session state, or the connection with it.

    A connection that Django would keep is cleaned and kept when it is whole: not in a transaction, in
    autocommit, a PostgreSQL one. Anything else is closed; so is one from a pool, after its state was discarded.
    """
    if connection.connection is None:
        return
    is_whole = connection.vendor == "postgresql" and connection.get_autocommit() and not connection.in_atomic_block
    pooled = bool(connection.settings_dict.get("OPTIONS", {}).get("pool"))
    kept = connection.close_at is None or pooled or connection.settings_dict["CONN_MAX_AGE"] > 0
    if not (is_whole and kept and connection.errors_occurred is False):
        _close(connection)
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute(load("discard_session"))
        connection.init_connection_state()
    except Exception:
        _close(connection)
        return
    if pooled:
        _close(connection)
    else:
        connection.close_if_unusable_or_obsolete()


def _close(connection: BaseDatabaseWrapper) -> None:
    connection.in_atomic_block = False
    connection.savepoint_ids = []
    connection.needs_rollback = False
    connection.closed_in_transaction = False
    connection.run_on_commit = []
    connection.close()
