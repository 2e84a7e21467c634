"""Complete one job by itself, at once."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import psycopg

from .. import conf
from ..server_errors import is_of_the_value
from ..sql import load
from ..states import State
from .connecting import is_guarded, quick_cursor, transaction
from .preparing import execute_prepared
from .settling import Ending, Settled, Written, holding, read, send, settle_one_by_one, settled

_EPOCH = struct.Struct("!d")


def settle_alone(connection: psycopg.Connection[Any], *, worker_id: int, ending: Ending) -> Settled:
    """Write one completion, as `settle` does. Raise `psycopg.Error` where the server is at fault."""
    try:
        written = commit_alone(connection, worker_id=worker_id, ending=ending)
    except psycopg.Error as error:
        if not is_of_the_value(error):
            raise
        return settle_one_by_one(connection, worker_id=worker_id, endings=[ending], error=error)
    return settled(connection, worker_id=worker_id, endings=[ending], written=written)


def commit_alone(connection: psycopg.Connection[Any], *, worker_id: int, ending: Ending) -> dict[int, Written]:
    """Write one completion in a transaction of its own; return nothing where it matched nothing.

    On a guarded connection it is one statement, which is its transaction.
    """
    if _is_guarded(connection):
        return complete_alone(connection, worker_id=worker_id, ending=ending)
    with transaction(connection, timeout_seconds=conf.current().claim_timeout_seconds):
        return complete_alone(connection, worker_id=worker_id, ending=ending)


def complete_alone(
    connection: psycopg.Connection[Any], *, worker_id: int, ending: Ending, hold_ms: int | None = None
) -> dict[int, Written]:
    """Write one completion in the transaction that is open, or in its own; return nothing where it matched nothing.

    From then on that transaction holds the lock of the job's row: the server ends one that idles for `hold_ms`, so that
    the row is free again where nobody hears its COMMIT.
    One row by its primary key, planned now or on a guarded connection: it needs no guard of its own.
    """
    if ending.result is None:
        at = complete_first(connection, worker_id=worker_id, ending=ending, hold_ms=hold_ms)
        if at is not None:
            return {ending.id: Written(State.SUCCEEDED, at)}
    return read(send(connection, worker_id=worker_id, endings=[ending], hold_ms=hold_ms))


def complete_first(
    connection: psycopg.Connection[Any], *, worker_id: int, ending: Ending, hold_ms: int | None = None
) -> datetime | None:
    """Write the completion of a first attempt that returned nothing; return when, None where it matched nothing."""
    owner = {"id": ending.id, "fence": ending.fence, "worker_id": worker_id}
    params = {**owner, "run_seconds": ending.run_seconds, **holding(connection, hold_ms)}
    if _is_guarded(connection):
        found = execute_prepared(connection, load("complete_first"), params)
        row = None if found is None else _EPOCH.unpack(found)
    else:
        row = quick_cursor(connection).execute(load("complete_first"), params).fetchone()
    return None if row is None else datetime.fromtimestamp(row[0], UTC)


def _is_guarded(connection: psycopg.Connection[Any]) -> bool:
    return is_guarded(connection, conf.current().claim_timeout_seconds)
