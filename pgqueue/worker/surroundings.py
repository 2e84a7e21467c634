"""What Django does around a request, done around a run on a worker's thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import close_old_connections, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from ..foreign import told
from ..logs import get_logger
from ..protocol.cleaning import give_back, note_use
from ..protocol.wrappers import some_keep_state

logger = get_logger(__name__)


class _Traces(threading.local):
    """Whether this thread may have an open connection: asking Django after each short job costs more than the job."""

    connected = False


_traces = _Traces()


def _note_connection(connection: BaseDatabaseWrapper, **_: Any) -> None:
    _traces.connected = True
    note_use(connection)


connection_created.connect(_note_connection, dispatch_uid="pgqueue.surroundings")


@contextmanager
def clean_surroundings() -> Iterator[None]:
    """Begin with usable connections and leave nothing behind: no session state, no transaction, no query log.

    Nor does a connection keep what a task set on its wrapper, such as the tenant of another package's backend.
    """
    begin_cleanly()
    try:
        yield
    finally:
        clean_up()


def begin_cleanly() -> None:
    """Close connections that have become old or unusable while this thread slept."""
    if not _traces.connected:
        return
    try:
        close_old_connections()
    except Exception as error:  # Without this thread, what is submitted would wait for ever.
        logger.error("connection.unclean %s", told(error))


def clean_up() -> None:
    """Leave nothing on this thread's connections."""
    if not _traces.connected and not some_keep_state():
        return
    kept = False
    for connection in connections.all(initialized_only=True):
        _give_back_safely(connection)
        kept = kept or connection.connection is not None
    _traces.connected = kept
    reset_queries()


def clean_up_for_good() -> None:
    """Leave no connection either: this thread is about to end."""
    clean_up()
    connections.close_all()


def _give_back_safely(connection: BaseDatabaseWrapper) -> None:
    """A connection that cannot even be closed must not cost the job its ending."""
    try:
        give_back(connection)
    except Exception as error:
        logger.error("connection.unclean alias=%s %s", connection.alias, told(error))
