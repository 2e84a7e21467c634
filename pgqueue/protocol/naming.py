"""Which names the database has seen, on Django's connection or a worker's own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import psycopg
from django.db import connections

from ..sql import load
from .counting import COUNTED_AT_MOST


def known_queues(alias: str, names: Collection[str]) -> set[str]:
    """Return which of the names are queues with a row or with a waiting job."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("find_known_queues"), {"names": list(names)})
        return {name for (name,) in cursor.fetchall()}


def worker_knows_queues(connection: psycopg.Connection[Any], names: Collection[str]) -> set[str]:
    """Do what `known_queues` does, on a worker's own connection."""
    rows = connection.execute(load("find_known_queues"), {"names": list(names)}).fetchall()
    return {name for (name,) in rows}


def has_limited(alias: str, kind: str, name: str) -> bool:
    """Return whether a tenant or a resource has a row, or one of the first waiting jobs."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("has_limited"), {"kind": kind, "name": name, "cap": COUNTED_AT_MOST})
        return bool(cursor.fetchone()[0])
