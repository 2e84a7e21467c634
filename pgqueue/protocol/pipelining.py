"""The pipeline: endings of the last jobs and the claim of the next ones in one transaction and one round trip.

A commit of its own for each costs a worker a round trip and a disk write more for every batch. Nothing depends on
the two being one: each ending is fenced on its own, a claim passes over locked rows, and a worker that never hears
the answer looks both up as if they had been apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from .. import conf
from .claiming import Claimant, Haul, Turn, send_plain
from .connecting import one_trip
from .settling import Ending, EndingKind, Settled, answered, send, settle, settle_one_by_one

TRAVELLING = frozenset({EndingKind.COMPLETE, EndingKind.RELEASE})


@dataclass(frozen=True, slots=True)
class Wish:
    """A claim of the plain lane: for whom, and how many."""

    claimant: Claimant
    limit: int
    turn: Turn


def settle_and_claim(
    connection: psycopg.Connection[Any],
    *,
    worker_id: int,
    endings: Sequence[Ending],
    wishes: Sequence[Wish],
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[Settled, list[Haul]]:
    """Write endings as `settle` does, then claim; return what came of them, and what was claimed for each wish.

    `meanwhile` is called when all is sent, and the server is busy unless it was a claim by itself. The transaction is
    open until it returns, so it is short, and raises nothing.

    The claims see what the endings before them freed. Where the database refuses an ending, no wish was granted, and no
    haul is returned. Failures go first and apart: what a job's death enqueues must be in the transaction that tells of
    it. What a thread has written is only told.
    """
    before = Settled({ending.id: ending.written for ending in endings if ending.written is not None})
    left = [ending for ending in endings if ending.written is None] if before.written else endings
    failed = [ending for ending in left if ending.kind not in TRAVELLING]
    if failed:
        before = _together(before, settle(connection, worker_id=worker_id, endings=failed))
    travelling = [ending for ending in left if ending.kind in TRAVELLING] if failed else left
    if not (travelling or wishes):
        meanwhile()
        return before, []
    try:
        timeout_seconds = conf.current().claim_timeout_seconds
        is_lone_claim = not travelling and len(wishes) == 1
        with one_trip(connection, timeout_seconds=timeout_seconds, is_single=is_lone_claim):
            sent = send(connection, worker_id=worker_id, endings=travelling)
            claims = [send_plain(connection, wish.claimant, limit=wish.limit, turn=wish.turn) for wish in wishes]
            meanwhile()
    except psycopg.Error as error:
        if not travelling:
            raise
        after = settle_one_by_one(connection, worker_id=worker_id, endings=travelling, error=error)
        return _together(before, after), []
    hauls = [Haul(claim, wish.turn) for claim, wish in zip(claims, wishes, strict=True)]
    for haul, wish in zip(hauls, wishes, strict=True):
        wish.turn.count(len(haul), wanted=wish.limit)
    after = answered(connection, worker_id=worker_id, endings=travelling, sent=sent)
    return _together(before, after), hauls


def _together(first: Settled, second: Settled) -> Settled:
    if not (first.told or first.busy or first.lost or first.refused):
        return second
    return Settled(
        first.written | second.written,
        first.busy + second.busy,
        first.lost + second.lost,
        first.refused + second.refused,
        first.untried + second.untried,
    )
