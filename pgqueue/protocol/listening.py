"""Hear NOTIFY on a connection that runs nothing else: a hint, never a promise."""

from __future__ import annotations

from typing import Any

import psycopg

from ..sql import load

BULK = "bulk:"
"""What is told in a queue's place where a bulk action was started."""


def listen(connection: psycopg.Connection[Any]) -> None:
    """Subscribe. Part of every connect, so that a new connection never sits there deaf."""
    connection.execute(load("listen"))


def wait(connection: psycopg.Connection[Any], *, timeout_seconds: float) -> str | None:
    """Wait for one notification and return its text, None when none came in time.

    Raise `psycopg.OperationalError` on a lost connection.
    """
    return next((heard.payload for heard in connection.notifies(timeout=timeout_seconds, stop_after=1)), None)


def wake(connection: psycopg.Connection[Any], queues: list[str]) -> None:
    """Wake listening workers."""
    connection.execute(load("notify"), {"queues": queues})
