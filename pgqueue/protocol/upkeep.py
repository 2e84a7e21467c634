"""What keeps the tables small and complete, in short transactions that fail each for itself.

A worker can do its work without any of it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from .. import conf
from ..sql import load
from .connecting import transaction

BATCH = 5_000
"""Rows looked at in one transaction: some 50 ms of deletes."""
DECLARE_SECONDS = 1.0
"""Longest wait for a limit whose row is locked."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """One batch: the last row looked at, and whether there was none behind it."""

    last_id: int
    is_over: bool


def prune_old(
    connection: psycopg.Connection[Any], statement: str, *, after_id: int, retention_seconds: float, limit: int = BATCH
) -> Pruned:
    """Delete what is older than `retention_seconds` among the next rows. `statement` is one of the prune statements."""
    params = {"after_id": after_id, "limit": limit, "retention_seconds": retention_seconds}
    with transaction(connection, timeout_seconds=conf.current().claim_timeout_seconds):
        row = connection.execute(load(statement), params).fetchone()
    assert row is not None
    last_id, looked_at, _ = row
    return Pruned(last_id or after_id, looked_at < limit)


def name_queue(connection: psycopg.Connection[Any], name: str) -> None:
    """Give a queue its row, so that operators see it in the list."""
    with transaction(connection, timeout_seconds=conf.current().claim_timeout_seconds):
        connection.execute(load("ensure_queue"), {"id": name})


def declare_limits(
    connection: psycopg.Connection[Any],
    limits: Mapping[str, Mapping[str, Any]],
    *,
    most_seconds: float | None = None,
) -> None:
    """Write down the limits of the settings. What an operator changed stays as it is.

    `limits` maps a kind and a name, as in `tenant:acme`, to some of `max_running`, `rate_per_second`, `burst` (by
    default 1 where there is a rate) and `weight`. Limits that stand as declared are not touched and wait for no lock.
    Each of the others is written in a transaction of its own. Raise the last error after all of them were tried. After
    a failure none is tried once `most_seconds` are over.
    """
    declared = {id: _declared(id, bounds) for id, bounds in sorted(limits.items())}
    timeout_seconds = conf.current().claim_timeout_seconds
    with transaction(connection, timeout_seconds=timeout_seconds):
        row = connection.execute(load("list_undeclared"), {"limits": json.dumps(list(declared.values()))}).fetchone()
    assert row is not None
    ids, has_others = row
    steps: list[tuple[str, Mapping[str, Any]]] = [("declare_limit", declared[id]) for id in ids]
    if has_others:
        steps.append(("forget_limits", {"ids": list(declared)}))
    until = float("inf") if most_seconds is None else time.monotonic() + most_seconds
    failed: psycopg.Error | None = None
    for statement, params in steps:
        if failed is not None and (connection.closed or time.monotonic() > until):
            break
        try:
            with transaction(connection, timeout_seconds=DECLARE_SECONDS):
                connection.execute(load(statement), params)
        except psycopg.Error as error:
            failed = error
    if failed is not None:
        raise failed


def _declared(id: str, bounds: Mapping[str, Any]) -> dict[str, Any]:
    burst = {"burst": 1} if "rate_per_second" in bounds else {}
    return {**dict.fromkeys(conf.BOUNDS), "weight": 1, **burst, **bounds, "id": id}
