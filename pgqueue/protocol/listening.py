"""Hear NOTIFY on a connection that runs nothing else: a hint, never a promise."""

from __future__ import annotations

import selectors
import socket
import time
import uuid
from collections import deque
from typing import Any

import psycopg
from psycopg import sql

from ..sql import load

QUEUES = "pgqueue"
"""The channel on which the names of queues with new jobs are sent. A name may be any text."""
BULK = "pgqueue_bulk"
"""The channel that tells that a bulk action was started."""


class Subscription:
    """What a connection hears on the channels of all workers, and on one of its own, which proves that it hears."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        """Subscribe. Part of every connect, so that a new connection never sits there deaf."""
        self.own_channel = f"pgqueue_{uuid.uuid4().hex}"
        self._connection = connection
        self._heard: deque[str] = deque()
        # Called for what comes in with the answer to a statement.
        connection.add_notify_handler(lambda notify: self._heard.append(notify.channel))
        for channel in (QUEUES, BULK, self.own_channel):
            connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

    def ask(self) -> None:
        """Notify ourselves. Raise `psycopg.OperationalError` where the server does not answer."""
        notify(self._connection, self.own_channel)

    def wait(self, *, timeout_seconds: float, interrupt: socket.socket) -> set[str]:
        """Return the channels heard on, all that have come; none when nothing came in time.

        Return early when `interrupt` can be read. Raise `psycopg.OperationalError` on a lost connection.
        """
        deadline = time.monotonic() + timeout_seconds
        pgconn = self._connection.pgconn
        with selectors.DefaultSelector() as selector:
            selector.register(pgconn.socket, selectors.EVENT_READ)
            selector.register(interrupt, selectors.EVENT_READ)
            while not self._heard and (left := deadline - time.monotonic()) > 0:
                ready = [key.fileobj for key, _ in selector.select(left)]
                if interrupt in ready:
                    break
                if ready:
                    pgconn.consume_input()
                    while (notified := pgconn.notifies()) is not None:
                        self._heard.append(notified.relname.decode())
        heard = set(self._heard)
        self._heard.clear()
        return heard


def notify(connection: psycopg.Connection[Any], channel: str) -> None:
    """Notify whoever listens on a channel."""
    connection.execute(load("notify"), {"channel": channel, "payloads": [""]})


def wake(connection: psycopg.Connection[Any], queues: list[str]) -> None:
    """Wake listening workers."""
    connection.execute(load("notify"), {"channel": QUEUES, "payloads": queues})
