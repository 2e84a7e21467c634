"""Break off a wait for an answer on another thread's connection."""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

import psycopg


def cut(connection: psycopg.Connection[Any]) -> None:
    """Shut the socket of a connection down: whoever waits there reads its end, and gets `psycopg.OperationalError`.

    Closing it here would free a descriptor that the other thread still looks at.
    """
    with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as other:
        other.shutdown(socket.SHUT_RDWR)
