"""One prepared statement in one round trip."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgqueue.protocol.connecting import connect
from pgqueue.protocol.preparing import execute_prepared

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

DOUBLE = "SELECT 2 * %(number)s::bigint"


@pytest.fixture
def own(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    with connect("default", role="test") as opened:
        yield opened


def double(connection: psycopg.Connection[Any], number: int) -> int:
    row = execute_prepared(connection, DOUBLE, {"number": number})
    assert row is not None
    return int(struct.unpack("!q", row)[0])


def prepared(connection: psycopg.Connection[Any]) -> list[str]:
    query = "SELECT statement FROM pg_prepared_statements WHERE name LIKE 'pgqueue%%'"
    return [text for (text,) in connection.execute(query, prepare=False)]


def test_it_is_prepared_once(own: psycopg.Connection[Any]) -> None:
    assert [double(own, 3), double(own, 4)] == [6, 8]
    assert prepared(own) == [DOUBLE.replace("%(number)s", "$1")]


def test_no_row_is_none(own: psycopg.Connection[Any]) -> None:
    assert execute_prepared(own, "SELECT 1 WHERE %(never)s::bool", {"never": False}) is None


def test_the_driver_goes_on_with_the_connection(own: psycopg.Connection[Any]) -> None:
    assert double(own, 3) == 6
    assert own.execute("SELECT 7").fetchone() == (7,)
    assert double(own, 4) == 8


def test_what_the_server_refuses_is_raised_as_itself(own: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.errors.NumericValueOutOfRange, match="out of range"):
        double(own, 2**62)
    assert double(own, 3) == 6


def test_a_nul_is_not_cut_off(own: psycopg.Connection[Any]) -> None:
    with pytest.raises(psycopg.DataError, match="NUL"):
        execute_prepared(own, "SELECT length(%(text)s::text)", {"text": "a\0b"})


def test_a_parameter_larger_than_the_socket_takes_at_once(own: psycopg.Connection[Any]) -> None:
    row = execute_prepared(own, "SELECT length(%(text)s::text)", {"text": "x" * 5_000_000})
    assert row == struct.pack("!i", 5_000_000)


def test_one_that_somebody_deallocated_is_prepared_again_the_next_time(own: psycopg.Connection[Any]) -> None:
    double(own, 3)
    own.execute("DEALLOCATE ALL")
    with pytest.raises(psycopg.errors.InvalidSqlStatementName):
        double(own, 4)
    assert double(own, 4) == 8


def test_an_error_of_the_commit_is_none_of_success(own: psycopg.Connection[Any]) -> None:
    """The server sends the row before it commits, and what it then refuses after it."""
    own.execute("CREATE TABLE pgqueue_pair (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    try:
        insert = "INSERT INTO pgqueue_pair VALUES (%(id)s::int) RETURNING id"
        execute_prepared(own, insert, {"id": 1})
        with pytest.raises(psycopg.errors.UniqueViolation):
            execute_prepared(own, insert, {"id": 1})
    finally:
        own.execute("DROP TABLE pgqueue_pair")


def test_a_server_that_does_not_answer_is_given_up(own: psycopg.Connection[Any]) -> None:
    pid = own.info.backend_pid
    with pytest.raises(psycopg.OperationalError, match="did not answer"):
        execute_prepared(own, "SELECT pg_sleep(%(seconds)s::float8)::text", {"seconds": 60}, answer_seconds=0.1)
    assert own.closed
    with connect("default", role="test") as other:
        other.execute("SELECT pg_terminate_backend(%s)", [pid])
