"""Look what there is to do, and until when to sleep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from .. import conf
from ..sql import load
from .claiming import Claimant
from .connecting import one_trip
from .marks import Group

WATCHED = 5_000
"""Most running jobs whose lease one look reads; where there are more, the next look goes on behind them."""
MOST_EXPIRED = 500
"""Expired jobs that one look names: more than one takeover takes, because rows may be locked."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """What there is to do: lanes with a due row, seconds to the next future row and expiry, queues and plain groups."""

    due_lanes: frozenset[int]
    next_due_seconds: float | None
    next_expiry_seconds: float | None
    queues: frozenset[str]
    groups: frozenset[Group] = frozenset()
    expired_ids: tuple[int, ...] = ()
    """Some of the jobs whose lease has run out, by chance."""
    next_worker: int = 0
    """Where the next look is to go on."""
    isolated_seconds: float | None = None
    """For how long the first isolated job has been due."""


def look(connection: psycopg.Connection[Any], claimant: Claimant, *, from_worker: int | None = None) -> Horizon:
    """Look what there is to do, without taking anything.

    Leases are looked at from those of `from_worker` on, by default the claimant's: workers begin at different places.
    """
    from_worker = claimant.worker_id if from_worker is None else from_worker
    params = {**claimant.params(), "from_worker": from_worker, "watched": WATCHED, "most_expired": MOST_EXPIRED}
    # Guarded for its plan: estimated by statistics of another day, it would be compiled for longer than it runs.
    with one_trip(connection, timeout_seconds=conf.current().claim_timeout_seconds, is_single=True):
        looked = connection.execute(load("look"), params)
    row = looked.fetchone()
    assert row is not None
    due_lanes, next_due_seconds, next_expiry_seconds, expired_ids, next_worker, queues, *groups, isolated_seconds = row
    return Horizon(
        due_lanes=frozenset(due_lanes),
        next_due_seconds=next_due_seconds,
        next_expiry_seconds=next_expiry_seconds,
        queues=frozenset(queues),
        groups=frozenset(zip(*groups, strict=True)),
        expired_ids=tuple(expired_ids),
        next_worker=next_worker,
        isolated_seconds=isolated_seconds,
    )
