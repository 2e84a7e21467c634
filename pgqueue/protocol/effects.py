"""Write down calls to the outside world, each under the lock of its job's row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import args_row

from .. import conf
from ..exceptions import LeaseLostError, OutcomeUnknownError
from ..sql import load
from ..states import Recovery, Stage, worst
from .claiming import Lease
from .connecting import transaction


@dataclass(frozen=True, slots=True)
class EffectRow:
    """An effect as it stands. `result` is JSON text, None for None."""

    name: str
    stage: str
    fence: int
    operation_key: str
    remote_reference: str | None
    result: str | None
    first_called_at: datetime | None
    called_at: datetime | None
    replay_until: datetime | None
    replay_safe: bool
    deadline_seconds_left: float | None

    def is_known(self) -> bool:
        """Say whether its result is stored."""
        return self.stage in (Stage.RESULT_KNOWN, Stage.CONFIRMING, Stage.CONFIRMED)

    def is_unknown(self) -> bool:
        """Say whether it may or may not have happened."""
        return self.stage == Stage.OUTCOME_UNKNOWN


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is about to begin: the effect's name, its idempotency key, and how long it counts for what."""

    name: str
    key: str
    call_deadline_seconds: float
    replay_safe_seconds: float
    has_begun: bool
    """Whether this run has called before, so that what is unknown is its own doing and no lost COMMIT answer."""


def open_effect(connection: psycopg.Connection[Any], lease: Lease, call: Call) -> EffectRow | None:
    """Write down that a call begins and return None; or return the effect whose result is stored: do not call.

    Raise `LeaseLostError` when the job is no longer owned or the lease has expired, and `OutcomeUnknownError` when
    an earlier call may have happened and must not be repeated.
    """
    with _owned(connection, lease, unexpired=True):
        effects = read_effects(connection, lease.id)
        found = next((effect for effect in effects if effect.name == call.name), None)
        if found is not None and found.is_known():
            return found
        if found is not None and not _may_call(found, lease, call):
            raise OutcomeUnknownError(lease.id, (call.name,))
        others = [effect for effect in effects if effect.name != call.name]
        params = {
            **_params(lease, call.name),
            **_summary(others),
            "unknown_effects": 1 + sum(effect.is_unknown() for effect in others),
            "attempt": lease.attempts + 1,
            "operation_key": call.key,
            "call_deadline_seconds": call.call_deadline_seconds,
            "replay_safe_seconds": call.replay_safe_seconds,
        }
        connection.execute(load("open_effect"), params)
    return None


def record_effect(
    connection: psycopg.Connection[Any], lease: Lease, name: str, *, result: str | None, remote_reference: str | None
) -> None:
    """Write down what a call came to; doing it twice is safe. Raise `LeaseLostError`."""
    with _owned(connection, lease):
        effects = _moved(read_effects(connection, lease.id), name, Stage.RESULT_KNOWN)
        result_params = {"result": result, "remote_reference": remote_reference}
        connection.execute(load("record_effect"), {**_params(lease, name), **_summary(effects), **result_params})


def withdraw_effect(connection: psycopg.Connection[Any], lease: Lease, name: str) -> None:
    """Write down that a call proved to have done nothing. Raise `LeaseLostError`.

    An earlier call of the same effect may have happened all the same: then its outcome stays unknown.
    """
    with _owned(connection, lease):
        effects = read_effects(connection, lease.id)
        found = next((effect for effect in effects if effect.name == name), None)
        if found is not None and found.is_unknown() and found.called_at == found.first_called_at:
            _move(connection, lease, effects, name, Stage.NOT_CALLED)


def confirm_effect(connection: psycopg.Connection[Any], lease: Lease, name: str, stage: Stage) -> bool:
    """Move an effect whose result is stored on to `confirming` or `confirmed`; False when it was confirmed before.

    Raise `LeaseLostError`, and `OutcomeUnknownError` when no result is stored.
    """
    with _owned(connection, lease):
        effects = read_effects(connection, lease.id)
        found = next((effect for effect in effects if effect.name == name), None)
        if found is None or not found.is_known():
            raise OutcomeUnknownError(lease.id, (name,))
        if found.stage == Stage.CONFIRMED:
            return False
        _move(connection, lease, effects, name, stage)
        return True


def read_effects(connection: psycopg.Connection[Any], id: int) -> list[EffectRow]:
    """Return the effects of a job, in the order of their first calls."""
    with connection.cursor(row_factory=args_row(EffectRow)) as cursor:
        return cursor.execute(load("read_effects"), {"id": id}).fetchall()


def _may_call(found: EffectRow, lease: Lease, call: Call) -> bool:
    """Say whether a call may begin whose effect has no stored result."""
    if not found.is_unknown():
        return True
    if found.fence == lease.fence and not call.has_begun:
        return True  # Our own write, whose COMMIT answer was lost: nothing was called yet.
    return lease.recovery == Recovery.IDEMPOTENT and found.replay_safe


@contextmanager
def _owned(connection: psycopg.Connection[Any], lease: Lease, *, unexpired: bool = False) -> Iterator[None]:
    """Hold the lock of the job's row for one short transaction. Raise `LeaseLostError` when it is not ours."""
    with transaction(connection, timeout_seconds=conf.current().claim_timeout_seconds):
        params = {**_params(lease, ""), "unexpired": unexpired}
        if connection.execute(load("lock_owned"), params).fetchone() is None:
            raise LeaseLostError(lease.id, lease.fence)
        yield


def _move(
    connection: psycopg.Connection[Any], lease: Lease, effects: Sequence[EffectRow], name: str, stage: Stage
) -> None:
    summary = _summary(_moved(effects, name, stage))
    connection.execute(load("move_effect"), {**_params(lease, name), **summary, "effect_stage": str(stage)})


def _moved(effects: Iterable[EffectRow], name: str, stage: Stage) -> list[EffectRow]:
    return [replace(effect, stage=str(stage)) if effect.name == name else effect for effect in effects]


def _params(lease: Lease, name: str) -> dict[str, Any]:
    return {"id": lease.id, "fence": lease.fence, "worker_id": lease.worker_id, "name": name}


def _summary(effects: Iterable[EffectRow]) -> dict[str, Any]:
    """Return what the job's row says of its effects."""
    effects = list(effects)
    unknown = [effect for effect in effects if effect.is_unknown()]
    return {
        "stage": str(worst(effect.stage for effect in effects)),
        "unknown_effects": len(unknown),
        "replay_until": min((effect.replay_until for effect in unknown if effect.replay_until), default=None),
    }
