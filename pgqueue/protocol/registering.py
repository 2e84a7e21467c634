"""Rows of worker processes: for people, never for recovery."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from .. import conf
from ..sql import load
from .connecting import transaction


def register(
    connection: psycopg.Connection[Any],
    *,
    host: str,
    pid: int,
    release: str,
    slots: int,
    lease_seconds: float,
    queues: Sequence[str] | None,
    excluded: Sequence[str],
    tasks: Sequence[str],
    parent_id: int | None = None,
) -> int:
    """Write down a started process and return its id. Nothing else is done here: whatever fails, no worker starts.

    `parent_id` is the worker of which this process is the quarantine.
    """
    params = {
        "host": host,
        "pid": pid,
        "release": release,
        "slots": slots,
        "lease_seconds": lease_seconds,
        "queues": None if queues is None else json.dumps(list(queues)),
        "excluded": json.dumps(list(excluded)),
        "tasks": json.dumps(sorted(tasks)),
        "parent_id": parent_id,
    }
    with transaction(connection, timeout_seconds=conf.current().claim_timeout_seconds):
        row = connection.execute(load("register_worker"), params).fetchone()
    assert row is not None
    return int(row[0])


@dataclass(frozen=True, slots=True)
class Heard:
    """What a process is told when it says that it is alive."""

    drain_requested: bool = False
    bulk_runs: bool = False


def send_beat(
    connection: psycopg.Connection[Any], *, worker_id: int, draining: bool, stopped: bool = False
) -> psycopg.Cursor[Any]:
    """Say that a process is alive, draining or stopped; the answer is for `read_beat`."""
    params = {"worker_id": worker_id, "draining": draining, "stopped": stopped}
    return connection.execute(load("beat_worker"), params)


def read_beat(sent: psycopg.Cursor[Any]) -> Heard:
    """Return what was told in answer. Nothing is asked of a process whose row is gone."""
    row = sent.fetchone()
    return Heard() if row is None else Heard(*row)
