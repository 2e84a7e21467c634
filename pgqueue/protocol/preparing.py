"""One prepared statement in one round trip, past most of the driver.

A cursor, adapters and a chain of generators take longer for a short statement than the server does. What is left here
is what libpq needs: send, wait, read. The wait is bounded, lets other threads run, and can be interrupted.
"""

from __future__ import annotations

import select
import time
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psycopg
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGresult

from .connecting import ANSWER_SECONDS, numbered

IS_POSSIBLE = hasattr(select, "poll")
_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)

_prepared: WeakKeyDictionary[psycopg.Connection[Any], set[bytes]] = WeakKeyDictionary()
"""Names of what is prepared on each connection."""


class _Statement(NamedTuple):
    name: bytes
    """Made from the text: whatever session it is sent to, the name means this statement or nothing."""
    text: bytes
    params: tuple[str, ...]


def execute_prepared(
    connection: psycopg.Connection[Any],
    query: str,
    params: Mapping[str, Any],
    *,
    answer_seconds: float = ANSWER_SECONDS,
) -> bytes | None:
    """Execute a statement of ours by itself, in autocommit; return its first row, None when there is none.

    A row is its columns in the server's binary form, one after the other; none of them may be null.

    Raise what the server says as `psycopg.Error`. Where it was prepared, and is so no more, nothing was done and it is
    prepared again the next time. Close the connection when no answer comes in time.
    """
    statement = _statement(query)
    values = [_spelled(params[name]) for name in statement.params]
    with connection.lock:
        known = _prepared.setdefault(connection, set())
        try:
            if statement.name not in known:
                connection.pgconn.send_prepare(statement.name, statement.text)
                _answer(connection, answer_seconds)
                known.add(statement.name)
            connection.pgconn.send_query_prepared(statement.name, values, result_format=Format.BINARY)
            result = _answer(connection, answer_seconds)
        except InvalidSqlStatementName:
            known.discard(statement.name)
            raise
        except psycopg.Error:
            raise
        except BaseException:
            # Thrown in from outside: nobody would read the answer.
            connection.close()
            raise
    return b"".join(result.get_value(0, column) or b"" for column in range(result.nfields)) if result.ntuples else None


@lru_cache(maxsize=64)
def _statement(query: str) -> _Statement:
    text, params = numbered(query)
    return _Statement(b"pgqueue_" + sha256(text).hexdigest()[:16].encode(), text, params)


def _spelled(value: Any) -> bytes | None:
    """Return a parameter as text; libpq reads it up to a NUL."""
    if value is None:
        return None
    text = str(value).encode()
    if b"\0" in text:
        raise psycopg.DataError("PostgreSQL text fields cannot contain NUL (0x00) bytes")
    return text


def _answer(connection: psycopg.Connection[Any], seconds: float) -> PGresult:
    """Return what the server answers. An error of the commit comes after the rows: the last one counts."""
    pgconn, deadline = connection.pgconn, time.monotonic() + seconds
    answer = None
    while pgconn.flush():
        _wait(connection, select.POLLIN | select.POLLOUT, deadline)
        pgconn.consume_input()
    while True:
        while pgconn.is_busy():
            _wait(connection, select.POLLIN, deadline)
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            break
        if answer is None or result.status not in _GOOD:
            answer = result
    assert answer is not None
    if answer.status not in _GOOD:
        raise error_from_result(answer, encoding=connection.info.encoding)
    return answer


def _wait(connection: psycopg.Connection[Any], events: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(connection.pgconn.socket, events)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        connection.close()
        raise psycopg.OperationalError("the server did not answer in time")
