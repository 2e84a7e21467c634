"""Write endings, many in one transaction, each fenced on its own."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from operator import attrgetter
from typing import Any, NamedTuple

import psycopg

from .. import conf
from ..failures import Description, FailureClass, describe
from ..foreign import told
from ..logs import get_logger
from ..server_errors import is_for_all, is_of_the_value
from ..sql import load
from ..states import State
from .connecting import quick_cursor, transaction
from .deciding import Unsettled, keep_evidence, settle_unknown
from .following import enqueue_on_dead, on
from .spelling import params_of

logger = get_logger(__name__)


class EndingKind(StrEnum):
    """The worker's verbs; each is a statement of the same name."""

    COMPLETE = "complete"
    RETRY = "retry"
    BURY = "bury"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed, redacted and bounded."""

    failure_class: FailureClass
    description: Description


class Written(NamedTuple):
    """An ending in the database: the state it led to, and when."""

    state: State
    at: datetime


class Ending(NamedTuple):
    """What came of one claim. `result` is JSON text, None for None; `delay_seconds` counts from the settling."""

    kind: EndingKind
    id: int
    fence: int
    run_seconds: float = 0.0
    result: str | None = None
    delay_seconds: float = 0.0
    failure: Failure | None = None
    written: Written | None = None
    """What was written and committed at once and alone; None where that is left to the dispatcher."""
    settle_seconds: float = 0.0
    """How long its thread, or the one that writes for the event loop, took for that."""
    error: BaseException | None = None  # For receivers of `task_finished`, where this may be the last attempt.


@dataclass(slots=True)
class Settled:
    """What became of endings: those written, by job id; those to send again; those that lost their jobs."""

    told: dict[int, Written] = field(default_factory=dict)
    busy: list[Ending] = field(default_factory=list)
    lost: list[Ending] = field(default_factory=list)
    refused: list[tuple[Ending, Exception]] = field(default_factory=list)
    """Those that the server refused, each by itself: they are to be sent again, apart from others."""
    untried: list[Ending] = field(default_factory=list)
    """Those that were left when the server had refused one after the other: they are to be sent again before those."""
    unread: Sequence[psycopg.Cursor[Any]] = ()
    """Answers that have a row for each ending: all were written. What they say is read when it is asked for."""

    def over(self, endings: Sequence[Ending]) -> Sequence[Ending]:
        """Return those of the endings that need not be sent again."""
        left = {ending.id for ending in (*self.busy, *self.untried)} | {ending.id for ending, _ in self.refused}
        return [ending for ending in endings if ending.id not in left] if left else endings

    @property
    def is_read(self) -> bool:
        """Whether nothing is left to read."""
        return not self.unread

    @property
    def written(self) -> dict[int, Written]:
        """What was written, by job id."""
        unread, self.unread = self.unread, ()
        self.told |= read(unread)
        return self.told


def settle(connection: psycopg.Connection[Any], *, worker_id: int, endings: Sequence[Ending]) -> Settled:
    """Write endings and return what came of each.

    An ending that the database refuses never blocks the others: then all are written one by one. One that matches no
    lease is looked up: it may be our own write whose COMMIT answer was lost, or locked by somebody for a moment. Raise
    `psycopg.Error` when the connection is lost; sending the same endings again is then safe.
    """
    try:
        written = _write(connection, worker_id, endings)
    except psycopg.Error as error:
        return settle_one_by_one(connection, worker_id=worker_id, endings=endings, error=error)
    return settled(connection, worker_id=worker_id, endings=endings, written=written)


def settle_one_by_one(
    connection: psycopg.Connection[Any], *, worker_id: int, endings: Sequence[Ending], error: psycopg.Error
) -> Settled:
    """Do as `settle_each` after the database has refused one ending, and with it all of their transaction.

    Raise the error when the connection is lost.
    """
    if connection.closed:
        raise error
    if len(endings) > 1:
        logger.warning("settle.refused count=%d %s", len(endings), told(error))
    return settle_each(connection, worker_id=worker_id, endings=endings)


def settle_each(connection: psycopg.Connection[Any], *, worker_id: int, endings: Sequence[Ending]) -> Settled:
    """Write endings each in a transaction of its own.

    Where a value is at fault, its job is buried with the reason. Where the server is, the ending is `refused`: a run
    that succeeded is not made a failure of. No SQLSTATE tells whether the server would refuse all of them, so that is
    tried: after a few refusals in a row, or one that took long, the others are left for later. Raise `psycopg.Error`
    when the connection is lost.
    """
    written: dict[int, Written] = {}
    refused: dict[int, Exception] = {}
    untried: set[int] = set()
    in_a_row = 0
    for place, ending in enumerate(endings):
        began_at = time.monotonic()
        try:
            written |= _write_or_bury(connection, worker_id, ending)
            in_a_row = 0
        except psycopg.Error as error:
            if connection.closed:
                raise
            refused[ending.id] = error
            in_a_row += 1
            if is_for_all(in_a_row, took_seconds=time.monotonic() - began_at):
                untried = {one.id for one in endings[place + 1 :]}
                break
    done = settled(connection, worker_id=worker_id, endings=endings, written=written)
    done.refused = [(ending, refused[ending.id]) for ending in done.busy if ending.id in refused]
    done.untried = [ending for ending in done.busy if ending.id in untried]
    done.busy = [ending for ending in done.busy if not (ending.id in refused or ending.id in untried)]
    return done


def _write_or_bury(connection: psycopg.Connection[Any], worker_id: int, ending: Ending) -> dict[int, Written]:
    try:
        return _write(connection, worker_id, [ending])
    except psycopg.Error as error:
        if not is_of_the_value(error):
            raise
        failure = Failure(FailureClass.RESULT, describe(error))
        return _write(connection, worker_id, [ending._replace(kind=EndingKind.BURY, failure=failure)])


def settled(
    connection: psycopg.Connection[Any],
    *,
    worker_id: int,
    endings: Sequence[Ending],
    written: dict[int, Written],
) -> Settled:
    """Say of each ending what came of it; look up those that matched no lease."""
    left = [ending for ending in endings if ending.id not in written]
    return _look_up(connection, worker_id, left, written) if left else Settled(written)


def answered(
    connection: psycopg.Connection[Any],
    *,
    worker_id: int,
    endings: Sequence[Ending],
    sent: Sequence[psycopg.Cursor[Any]],
) -> Settled:
    """Say of each ending that was sent what came of it. Of completions that were all written, no more is read now."""
    are_all_written = sum(cursor.rowcount for cursor in sent) == len(endings)
    if are_all_written and all(ending.kind is EndingKind.COMPLETE for ending in endings):
        return Settled(unread=sent)
    return settled(connection, worker_id=worker_id, endings=endings, written=read(sent))


def _write(connection: psycopg.Connection[Any], worker_id: int, endings: Iterable[Ending]) -> dict[int, Written]:
    with transaction(connection, timeout_seconds=conf.current().claim_timeout_seconds):
        written = read(send(connection, worker_id=worker_id, endings=endings))
        enqueue_on_dead(on(connection), [id for id, one in written.items() if one.state is State.DEAD])
    return written


def send(
    connection: psycopg.Connection[Any], *, worker_id: int, endings: Iterable[Ending], hold_ms: int | None = None
) -> list[psycopg.Cursor[Any]]:
    """Send endings, a statement for each kind, inside a transaction of the caller's; `read` takes the answers.

    `hold_ms` bounds how long a longer transaction may idle after a completion.
    """
    groups: dict[EndingKind, list[Ending]] = {}
    for ending in sorted(endings, key=attrgetter("id")):
        groups.setdefault(ending.kind, []).append(ending)
    cursors: list[psycopg.Cursor[Any]] = []
    for kind, group in groups.items():
        params = params_of(kind, group)
        if kind is EndingKind.COMPLETE:
            params |= holding(connection, hold_ms)
        cursors.append(quick_cursor(connection))
        cursors[-1].execute(load(kind.value), {**params, "worker_id": worker_id})
    return cursors


def holding(connection: psycopg.Connection[Any], hold_ms: int | None) -> dict[str, int | None]:
    """Return the parameters of a completion that say how its transaction goes on."""
    return {"hold_ms": hold_ms, "backend_pid": None if hold_ms is None else connection.info.backend_pid}


def read(sent: Iterable[psycopg.Cursor[Any]]) -> dict[int, Written]:
    """Return what was written, by job id. All rows of a statement have the same instant, and few states."""
    written: dict[int, Written] = {}
    for cursor in sent:
        known: dict[str, Written] = {}
        for id, state, epoch in cursor.fetchall():
            if state not in known:
                known[state] = Written(State(state), datetime.fromtimestamp(epoch, UTC))
            written[id] = known[state]
    return written


def _look_up(
    connection: psycopg.Connection[Any], worker_id: int, left: list[Ending], written: dict[int, Written]
) -> Settled:
    params = {
        "worker_id": worker_id,
        "ids": [ending.id for ending in left],
        "fences": [ending.fence for ending in left],
    }
    # In this order: a COMMIT of ours that is still on its way is then seen by the one or by the other.
    held = {id: unknown for id, _, unknown in connection.execute(load("find_held"), params).fetchall()}
    found = connection.execute(load("find_own_endings"), params).fetchall()
    own = {id: Written(State(state), at) for id, state, at in found if id not in held}
    decided = _settle_unknown(connection, worker_id, [ending for ending in left if held.get(ending.id)])
    lost = [ending for ending in left if ending.id not in held and ending.id not in own]
    for ending in lost:
        evidence = {"ending": str(ending.kind), "run_seconds": ending.run_seconds, **_evidence(ending)}
        keep_evidence(connection, id=ending.id, fence=ending.fence, worker_id=worker_id, evidence=evidence)
    return Settled(
        told=written | own | decided,
        busy=[ending for ending in left if ending.id in held and ending.id not in decided],
        lost=lost,
    )


def _settle_unknown(
    connection: psycopg.Connection[Any], worker_id: int, endings: Iterable[Ending]
) -> dict[int, Written]:
    """Settle those that the statements of their kinds leave out, because an effect of theirs is unknown."""
    written: dict[int, Written] = {}
    for ending in endings:
        unsettled = Unsettled(
            id=ending.id,
            fence=ending.fence,
            run_seconds=ending.run_seconds,
            has_started=ending.kind is not EndingKind.RELEASE,
            is_retryable=ending.kind is not EndingKind.BURY,
            delay_seconds=None if ending.kind is EndingKind.COMPLETE else ending.delay_seconds,
            failure_class=None if ending.failure is None else ending.failure.failure_class,
            description=None if ending.failure is None else ending.failure.description,
        )
        settled = settle_unknown(connection, worker_id=worker_id, ending=unsettled)
        if settled is not None:
            written[ending.id] = Written(*settled)
    return written


def _evidence(ending: Ending) -> dict[str, Any]:
    """Return what a late ending says, for the attempt that lost the job."""
    if ending.failure is None:
        return {"result": None if ending.result is None else json.loads(ending.result)}
    return {"error_class": ending.failure.description.class_path, "message": ending.failure.description.message}
