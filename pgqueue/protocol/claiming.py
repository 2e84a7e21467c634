"""Claim jobs for a worker, and look what there is to claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import args_row

from .. import conf
from ..sql import load
from ..states import Lane
from .connecting import transaction

PICK_ROUNDS = 5
"""Most rounds of one guarded claim: each passes over the keys that the one before was refused."""


@dataclass(frozen=True, slots=True)
class Claimant:
    """Who claims, and what it serves. `queues` None means every queue but the excluded ones."""

    worker_id: int
    tasks: tuple[str, ...]
    lease_seconds: float
    queues: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()

    def params(self) -> dict[str, Any]:
        """Return the parameters that the claim statements share."""
        return {
            "worker_id": self.worker_id,
            "tasks": list(self.tasks),
            "lease_seconds": self.lease_seconds,
            "queues": None if self.queues is None else list(self.queues),
            "excluded": list(self.excluded),
        }


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to run one job for a limited time, as the claim granted it. `args` and `kwargs` are JSON texts."""

    id: int
    worker_id: int
    fence: int
    version: int
    queue: str
    task: str
    priority: int
    lane: int
    attempts: int
    max_attempts: int
    lease_losses: int
    max_run_seconds: int | None
    recovery: str
    tenant: str | None
    shard_key: str | None
    operation_key: str | None
    created_at: datetime
    run_at: datetime
    args: str | None
    kwargs: str | None


@dataclass(frozen=True, slots=True)
class Horizon:
    """What there is to do: lanes with a due row, seconds to the next future row and expiry, queues with work."""

    due_lanes: frozenset[int]
    next_due_seconds: float | None
    next_expiry_seconds: float | None
    queues: frozenset[str]


def claim(connection: psycopg.Connection[Any], claimant: Claimant, *, lane: Lane, limit: int) -> list[Lease]:
    """Claim up to `limit` due jobs of one lane in one short transaction.

    The plain lane takes one statement; the others pick rows and lock their keys first, then claim under a
    new snapshot.
    """
    params = {**claimant.params(), "limit": limit, "lane": int(lane)}
    try:
        return _claim(connection, params, lane)
    except psycopg.errors.UniqueViolation:
        # The last line: a second running job of one shard key. It costs this one claim of a guarded lane.
        return []


def _claim(connection: psycopg.Connection[Any], params: dict[str, Any], lane: Lane) -> list[Lease]:
    with (
        transaction(connection, timeout_seconds=conf.current().claim_timeout_seconds),
        connection.cursor(row_factory=args_row(Lease)) as cursor,
    ):
        if lane is Lane.PLAIN:
            return cursor.execute(load("claim"), params).fetchall()
        return _claim_picked(connection, cursor, params)


def _claim_picked(
    connection: psycopg.Connection[Any], cursor: psycopg.Cursor[Lease], params: dict[str, Any]
) -> list[Lease]:
    """Pick and claim in rounds: heads that are locked or paused must not keep the keys behind them waiting."""
    claimed: list[Lease] = []
    refused_ids: list[int] = []
    refused_keys: list[str] = []
    for _ in range(PICK_ROUNDS):
        wanted = params["limit"] - len(claimed)
        round_params = {**params, "limit": wanted, "refused_ids": refused_ids, "refused_keys": refused_keys}
        picked = connection.execute(load("pick_laned"), round_params).fetchall()
        ids = [id for id, _, got in picked if got]
        got = cursor.execute(load("claim_picked"), {**params, "ids": ids}).fetchall() if ids else []
        claimed += got
        taken = {lease.id for lease in got}
        refused_ids += [id for id, _, _ in picked if id not in taken]
        refused_keys += [key for id, key, _ in picked if id not in taken and key is not None]
        if len(claimed) >= params["limit"] or not picked or len(got) == len(picked):
            break
    return claimed


def look(connection: psycopg.Connection[Any], claimant: Claimant) -> Horizon:
    """Look what there is to do, without taking anything."""
    row = connection.execute(load("look"), claimant.params()).fetchone()
    assert row is not None
    return Horizon(frozenset(row[0]), row[1], row[2], frozenset(row[3]))


def find_unheard(
    connection: psycopg.Connection[Any], *, worker_id: int, held_ids: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (id, fence) of claims of this worker whose answer it never heard."""
    params = {"worker_id": worker_id, "held_ids": list(held_ids)}
    return connection.execute(load("find_unheard"), params).fetchall()
