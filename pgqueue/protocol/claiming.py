"""Claim jobs for a worker, and look what there is to claim."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

import psycopg

from .. import conf
from ..sql import load
from ..states import Lane
from .connecting import quick_cursor, transaction
from .marks import Marks, as_param, as_params

PICK_ROUNDS = 5
"""Most rounds of one guarded claim: each passes over the keys that the one before was refused."""
WALK_STEPS = 16
"""Tenants, and keys of a tenant, that a round of a guarded claim looks at, beside one for each job it wants."""
WHOLE_TURN = 1_000
"""Jobs in a turn that no weight exceeds: the tenant has had it."""
MOMENT_SECONDS = 0.05
"""Longest pause before a source is asked again that may have more than a claim of it found."""
MOST_PLACES = 1_000
"""Tenants of which a process remembers where a walk over their keys broke off."""


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


class Lease(NamedTuple):
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
    created_epoch: float
    """Instants in seconds since 1970: the driver takes longer for a datetime than for all the rest."""
    run_epoch: float
    args: str | None
    kwargs: str | None
    replaced_at: datetime | None = None
    """When a later enqueue last replaced its arguments."""

    @property
    def created_at(self) -> datetime:
        """When the job was enqueued."""
        return datetime.fromtimestamp(self.created_epoch, UTC)


@dataclass(slots=True)
class Turn:
    """Where the claims of one source go on: whose turn it is among the tenants, and what came of the last one.

    Kept by the caller between its claims; each process goes its own round.
    """

    claims: int = 0
    """Claims that got something. One in `AGEING_EVERY` walks the priorities from the lowest up."""
    tenant: str = ""
    used: int = 0
    """Jobs that the tenant had in its turn. From as many as its weight on, the next one is first."""
    places: dict[str, list[str]] = field(default_factory=dict)
    """The key, task and resource after which to look, of tenants with more of them than one walk looks at."""
    more_in_seconds: float | None = None
    """When another claim may find what this one did not: it broke off, somebody held a lock, or it used marks."""
    marks: Marks = field(default_factory=Marks)

    def count(self, claimed: int, *, wanted: int) -> None:
        """Note how many jobs a claim of the plain lane got."""
        self.claims += bool(claimed)
        is_short = claimed < wanted
        self.marks.answered(is_short=is_short)
        self.more_in_seconds = None
        if is_short and self.marks.are_used:
            self.more_in_seconds = 0.0 if self.marks.goes_first else MOMENT_SECONDS

    def pass_on(self, leases: Sequence[Lease], *, wanted: int, broken_off: Sequence[str]) -> None:
        """Let the tenants after those served be next; where nobody was left to serve, those after the walk's end."""
        for lease in leases:
            tenant = lease.tenant or ""
            self.used = self.used + 1 if tenant == self.tenant else 1
            self.tenant = tenant
        if broken_off and len(leases) < wanted:
            self.tenant, self.used = broken_off[0], WHOLE_TURN

    def remember(self, places: Mapping[str, list[str]]) -> None:
        """Go on behind the keys where a walk broke off; from the first again where it came round."""
        self.places.update(places)
        while len(self.places) > MOST_PLACES:
            del self.places[next(iter(self.places))]


def claim(
    connection: psycopg.Connection[Any], claimant: Claimant, *, lane: Lane, limit: int, turn: Turn | None = None
) -> list[Lease]:
    """Claim up to `limit` due jobs of one lane in one short transaction.

    The plain lane takes one statement; the others pick rows and lock their limits and keys first, then claim under
    a new snapshot. `turn` is what the caller keeps between claims of one kind; it is changed.
    """
    turn = turn or Turn()
    params = _params(claimant, limit, turn)
    try:
        with (
            transaction(connection, timeout_seconds=conf.current().claim_timeout_seconds),
            lease_cursor(connection) as cursor,
        ):
            if lane is Lane.PLAIN:
                leases = cursor.execute(*_plain(params, turn)).fetchall()
            else:
                leases = _claim_picked(cursor, params, lane, turn)
            leases = with_replaced(connection, leases)
    except psycopg.errors.UniqueViolation:
        # The last line: a second running job of one shard key. It costs this one claim of a guarded lane.
        return []
    if lane is Lane.PLAIN:
        turn.count(len(leases), wanted=limit)
        turn.marks.note(leases)
    else:
        turn.claims += bool(leases)
    return leases


def lease_cursor(connection: psycopg.Connection[Any]) -> psycopg.Cursor[Lease]:
    """Return a cursor whose rows are leases."""
    return quick_cursor(connection, row_factory=lambda cursor: Lease._make)


def send_plain(
    connection: psycopg.Connection[Any], claimant: Claimant, *, limit: int, turn: Turn
) -> psycopg.Cursor[Lease]:
    """Send a claim of the plain lane inside a transaction of the caller's; a `Haul` is what came of it."""
    return lease_cursor(connection).execute(*_plain(_params(claimant, limit, turn), turn))


def _plain(params: dict[str, Any], turn: Turn) -> tuple[str, dict[str, Any]]:
    """Return the statement of a claim of the plain lane with its parameters."""
    marks = turn.marks.choose(wanted=params["limit"])
    if len(marks) != 1:
        return load("claim"), params | as_params(marks)
    ((group, mark),) = marks.items()
    one = {"limit": 1} if turn.marks.goes_first else {}
    return load("claim_behind"), params | as_param(group, mark) | one


class Haul:
    """Leases as a trip brought them, counted at once and read when there is time: that takes longer than counting."""

    def __init__(self, claimed: psycopg.Cursor[Lease], turn: Turn) -> None:
        self._claimed = claimed
        self._turn = turn

    def __len__(self) -> int:
        return self._claimed.rowcount

    def read(self) -> list[Lease]:
        """Return the leases. Raise `psycopg.OperationalError` when the server is away and has to be asked again."""
        leases = with_replaced(self._claimed.connection, self._claimed.fetchall())
        self._turn.marks.note(leases)
        return leases


def _params(claimant: Claimant, limit: int, turn: Turn) -> dict[str, Any]:
    ageing_every = conf.current().ageing_every
    return {**claimant.params(), "limit": limit, "from_lowest": turn.claims % ageing_every == ageing_every - 1}


def with_replaced(connection: psycopg.Connection[Any], leases: list[Lease]) -> list[Lease]:
    """Read arguments again that an enqueue replaced: its COMMIT may be younger than the claim's snapshot.

    What is running, nobody replaces: any time from the lock on is right.
    """
    ids = [lease.id for lease in leases if lease.replaced_at]
    if not ids:
        return leases
    rows = connection.execute(load("read_payloads"), {"ids": ids}).fetchall()
    found = {id: {"args": args, "kwargs": kwargs} for id, args, kwargs in rows}
    return [lease._replace(**found.get(lease.id, {})) for lease in leases]


def _claim_picked(cursor: psycopg.Cursor[Lease], params: dict[str, Any], lane: Lane, turn: Turn) -> list[Lease]:
    """Pick and claim in rounds: heads that are locked or paused must not keep those behind them waiting."""
    claimed: list[Lease] = []
    refused: list[Pick] = []
    for _ in range(PICK_ROUNDS):
        wanted = params["limit"] - len(claimed)
        picked = _pick(cursor.connection, {**params, "limit": wanted}, lane, turn, refused)
        got = _take(cursor, params, picked.heads)
        claimed += got
        taken = {lease.id for lease in got}
        refused += [head for head in picked.heads if head.id not in taken]
        turn.pass_on(got, wanted=wanted, broken_off=picked.broken_off)
        turn.more_in_seconds = MOMENT_SECONDS if picked.has_more or refused else None
        if len(got) >= wanted or (not picked.has_more and len(picked.heads) < wanted):
            break
    return claimed


@dataclass(frozen=True, slots=True)
class Pick:
    """A job that the first half of a guarded claim proposes, and whether it holds all locks of it."""

    id: int
    queue_and_key: str | None
    got: bool
    limits: list[str]
    missed: list[str]
    """Limits of it that another session had locked."""


@dataclass(frozen=True, slots=True)
class Picked:
    """What the first half of a guarded claim proposes, and where it broke off: at a tenant, at groups of tenants."""

    heads: list[Pick]
    has_more: bool
    """Whether it left something unread that it might have proposed."""
    broken_off: list[str]


def _pick(
    connection: psycopg.Connection[Any], params: dict[str, Any], lane: Lane, turn: Turn, refused: Sequence[Pick]
) -> Picked:
    statement = "pick_laned" if lane is Lane.LANED else "pick_bound"
    more = {
        "lane": int(Lane.PLAIN if lane is Lane.BOUND else lane),
        "refused_ids": [head.id for head in refused],
        "refused_keys": [head.queue_and_key for head in refused if head.queue_and_key is not None],
        "refused_limits": sorted({limit for head in refused for limit in head.missed}),
        "next_tenant": turn.tenant,
        "used": turn.used,
        "places": json.dumps(turn.places),
        "steps": WALK_STEPS + params["limit"],
    }
    end, *rows = connection.execute(load(statement), {**params, **more}).fetchall()
    _, _, is_cut, _, broken_off, _, found = end
    places = json.loads(found)
    turn.remember(places)
    heads = [Pick(id, key, got, limits, missed) for id, key, got, _, limits, missed, _ in rows]
    return Picked(heads, has_more=is_cut or bool(broken_off or places), broken_off=broken_off)


def _take(cursor: psycopg.Cursor[Lease], params: dict[str, Any], heads: Sequence[Pick]) -> list[Lease]:
    held = [head for head in heads if head.got]
    if not held:
        return []
    locked = sorted({limit for head in heads for limit in head.limits})
    params = {**params, "ids": [head.id for head in held], "locked": locked}
    return cursor.execute(load("claim_picked"), params).fetchall()


def find_unheard(
    connection: psycopg.Connection[Any], *, worker_id: int, held_ids: Sequence[int]
) -> list[tuple[int, int]]:
    """Return (id, fence) of claims of this worker whose answer it never heard."""
    params = {"worker_id": worker_id, "held_ids": list(held_ids)}
    return connection.execute(load("find_unheard"), params).fetchall()
