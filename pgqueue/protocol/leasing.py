"""Renew what a worker holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from .. import conf
from ..sql import load
from .connecting import one_trip


@dataclass(frozen=True, slots=True)
class Renewal:
    """The answer to one heartbeat. Ids in none of the sets are not lost: locked by somebody, or settled by us."""

    renewed: frozenset[int]
    stop_requested: frozenset[int]
    lost: frozenset[int]


def renew(
    connection: psycopg.Connection[Any],
    *,
    worker_id: int,
    held: Mapping[int, int],
    lease_seconds: float,
    timeout_seconds: float | None = None,
) -> Renewal:
    """Renew every lease of `held`, a mapping of job id to fence, in one statement and one round trip.

    A lease that has expired is not renewed, even if nobody took it over yet. `timeout_seconds` is by default the
    settings'.
    """
    if timeout_seconds is None:
        timeout_seconds = conf.current().heartbeat_timeout_seconds
    ids = sorted(held)
    params = {
        "worker_id": worker_id,
        "ids": ids,
        "fences": [held[id] for id in ids],
        "lease_seconds": lease_seconds,
    }
    with one_trip(connection, timeout_seconds=timeout_seconds, is_single=True):
        sent = connection.execute(load("renew"), params)
    rows = sent.fetchall()
    renewed = frozenset(id for id, _ in rows)
    missing = {id: held[id] for id in ids if id not in renewed}
    kept = _kept(connection, worker_id, missing, timeout_seconds=timeout_seconds) if missing else set()
    return Renewal(
        renewed=renewed,
        stop_requested=frozenset(id for id, stop_requested in rows if stop_requested),
        lost=frozenset(missing.keys() - kept),
    )


def _kept(
    connection: psycopg.Connection[Any], worker_id: int, asked: Mapping[int, int], *, timeout_seconds: float
) -> set[int]:
    """Return what this worker holds though a lock kept it from being renewed, or has settled since it was asked for."""
    params = {"worker_id": worker_id, "ids": list(asked), "fences": list(asked.values())}
    # In this order: an ending of ours that commits in between is then seen by the one or by the other.
    with one_trip(connection, timeout_seconds=timeout_seconds):
        held = connection.execute(load("find_held"), params)
        endings = connection.execute(load("find_own_endings"), params)
    return {id for id, expired, _ in held.fetchall() if not expired} | {id for id, *_ in endings.fetchall()}
