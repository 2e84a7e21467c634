"""Send the protocol's statements through Django's cursor, for wrappers that must not be bypassed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import Error as DjangoError
from psycopg.rows import RowFactory, tuple_row


class DjangoConnection:
    """Offers what the protocol uses of a psycopg connection.

    Each statement has a Django cursor of its own: what the backend sets for each cursor, such as a tenant or a
    search path, is in force for it. Errors are the driver's, as they are on a psycopg connection.
    """

    def __init__(self, wrapper: BaseDatabaseWrapper) -> None:
        self.wrapper = wrapper

    @property
    def info(self) -> psycopg.ConnectionInfo:
        """The state of the psycopg connection beneath."""
        info: psycopg.ConnectionInfo = self.wrapper.connection.info
        return info

    def cursor(self, *, row_factory: RowFactory[Any] = tuple_row) -> DjangoCursor:
        """Return a cursor whose rows `row_factory` makes."""
        return DjangoCursor(self, row_factory)

    def execute(self, query: str, params: Mapping[str, Any] | None = None) -> DjangoCursor:
        """Execute a statement and return its cursor."""
        return self.cursor().execute(query, params)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block of Django's: a savepoint where a transaction is open."""
        with transaction.atomic(using=self.wrapper.alias):
            yield


class DjangoCursor:
    """Offers what the protocol uses of a psycopg cursor."""

    def __init__(self, connection: DjangoConnection, row_factory: RowFactory[Any]) -> None:
        self.connection = connection
        self._row_factory = row_factory
        with _drivers_errors():
            self._cursor: Any = connection.wrapper.cursor()

    def __enter__(self) -> DjangoCursor:
        return self

    def __exit__(self, *exc: object) -> None:
        self._cursor.close()

    @property
    def rowcount(self) -> int:
        """Number of rows that the statement changed or found."""
        return int(self._cursor.rowcount)

    def execute(self, query: str, params: Mapping[str, Any] | None = None) -> DjangoCursor:
        """Execute a statement."""
        with _drivers_errors():
            self._cursor.execute(query, params)
        return self

    def fetchone(self) -> Any:
        """Return the next row; None when there is none."""
        row = self._cursor.fetchone()
        return None if row is None else self._row_factory(self._cursor)(row)

    def fetchall(self) -> list[Any]:
        """Return the rows that are left."""
        make = self._row_factory(self._cursor)
        return [make(row) for row in self._cursor.fetchall()]


@contextmanager
def _drivers_errors() -> Iterator[None]:
    try:
        yield
    except DjangoError as error:
        if isinstance(error.__cause__, psycopg.Error):
            raise error.__cause__ from None
        raise
