"""A few connections of the queue's own for short writes from any thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from .. import conf
from .connecting import BoundedConnection, connect

MOST_IDLE = 10
"""As many as there are threads by default, which all may have a completion to commit."""


class Lender:
    """Lends one connection per write under way: as many as write at once, and few that are kept for the next."""

    def __init__(self) -> None:
        self._idle: list[tuple[str, BoundedConnection]] = []
        self._lock = threading.Lock()

    @contextmanager
    def lend(self, alias: str) -> Iterator[psycopg.Connection[Any]]:
        """Lend a connection. One on which anything went wrong is closed."""
        connection = self._take(alias)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if len(self._idle) < MOST_IDLE:
                self._idle.append((alias, connection))
                return
        connection.close()

    def close(self) -> None:
        """Close what is idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _take(self, alias: str) -> BoundedConnection:
        with self._lock:
            for place, (name, connection) in enumerate(self._idle):
                if name == alias:
                    del self._idle[place]
                    return connection
        return connect(alias, role="effects", timeout_seconds=conf.current().claim_timeout_seconds)


lender = Lender()
