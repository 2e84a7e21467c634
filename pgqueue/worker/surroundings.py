"""What Django does around a request, done around a run on a worker's thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import close_old_connections, connections, reset_queries

from ..protocol.cleaning import clean


@contextmanager
def clean_surroundings() -> Iterator[None]:
    """Begin with usable connections and leave nothing behind: no session state, no transaction, no query log."""
    close_old_connections()
    try:
        yield
    finally:
        for connection in connections.all(initialized_only=True):
            clean(connection)
        reset_queries()
