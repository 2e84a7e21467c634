"""What Django does around a request, done around a run on a worker's thread."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import close_old_connections, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper

from ..protocol.cleaning import clean

logger = logging.getLogger(__name__)


@contextmanager
def clean_surroundings() -> Iterator[None]:
    """Begin with usable connections and leave nothing behind: no session state, no transaction, no query log."""
    close_old_connections()
    try:
        yield
    finally:
        clean_up()


def clean_up() -> None:
    """Leave nothing on this thread's connections."""
    for connection in connections.all(initialized_only=True):
        _clean_safely(connection)
    reset_queries()


def clean_up_for_good() -> None:
    """Leave no connection either: this thread is about to end."""
    clean_up()
    connections.close_all()


def _clean_safely(connection: BaseDatabaseWrapper) -> None:
    """A connection that cannot even be closed must not cost the job its ending."""
    try:
        clean(connection)
    except Exception:
        logger.exception("connection.unclean alias=%s", connection.alias)
