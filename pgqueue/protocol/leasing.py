"""Renew what a worker holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from .. import conf
from ..sql import load
from .connecting import transaction


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to one heartbeat. Ids in none of the sets are not lost: locked by somebody, or settled by us."""

    renewed: frozenset[int]
    stop_requested: frozenset[int]
    lost: frozenset[int]


def renew(
    connection: psycopg.Connection[Any], *, worker_id: int, held: Mapping[int, int], lease_seconds: float
) -> Renewal:
    """Renew every lease of `held`, a mapping of job id to fence, in one statement.

    A lease that has expired is not renewed, even if nobody took it over yet.
    """
    ids = sorted(held)
    params = {
        "worker_id": worker_id,
        "ids": ids,
        "fences": [held[id] for id in ids],
        "lease_seconds": lease_seconds,
    }
    with transaction(connection, timeout_seconds=conf.current().heartbeat_timeout_seconds):
        rows = connection.execute(load("renew"), params).fetchall()
    renewed = frozenset(id for id, _ in rows)
    missing = set(ids) - renewed
    kept = _kept(connection, worker_id, {id: held[id] for id in missing}) if missing else set()
    return Renewal(
        renewed=renewed,
        stop_requested=frozenset(id for id, stop_requested in rows if stop_requested),
        lost=frozenset(missing - kept),
    )


def _kept(connection: psycopg.Connection[Any], worker_id: int, asked: Mapping[int, int]) -> set[int]:
    """Return what this worker holds though a lock kept it from being renewed, or has settled since it was asked for."""
    params = {"worker_id": worker_id, "ids": list(asked), "fences": list(asked.values())}
    # In this order: an ending of ours that commits in between is then seen by the one or by the other.
    held = {id for id, expired, _ in connection.execute(load("find_held"), params).fetchall() if not expired}
    return held | {id for id, *_ in connection.execute(load("find_own_endings"), params).fetchall()}
