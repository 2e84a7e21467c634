"""Endings that leave an effect unknown: one by one, each as the decision table says of the locked row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg
from psycopg.rows import args_row

from .. import conf
from ..backoff import delay_seconds
from ..exceptions import OutcomeUnknownError
from ..failures import Description, FailureClass, describe
from ..recovery import Facts, asks_probe, decide
from ..sql import load
from ..states import State
from .connecting import transaction
from .effects import read_effects


@dataclass(frozen=True, slots=True)
class Unsettled:
    """An ending as the run told it, before it is known that an effect is unknown."""

    id: int
    fence: int
    run_seconds: float
    has_started: bool
    is_retryable: bool
    delay_seconds: float | None
    """None: the run did not fail, and tells no delay."""
    failure_class: FailureClass | None
    description: Description | None


@dataclass(frozen=True, slots=True)
class _Owned:
    id: int
    recovery: str
    unknown_effects: int
    stop_requested: bool
    attempts: int
    max_attempts: int
    replay_safe: bool


def settle_unknown(
    connection: psycopg.Connection[Any], *, worker_id: int, ending: Unsettled
) -> tuple[State, datetime] | None:
    """Settle an ending of a job of which an effect is unknown; None when that is not so, or not ours, any more."""
    params = {"id": ending.id, "fence": ending.fence, "worker_id": worker_id, "unexpired": False}
    with (
        transaction(connection, timeout_seconds=conf.current().claim_timeout_seconds),
        connection.cursor(row_factory=args_row(_Owned)) as cursor,
    ):
        job = cursor.execute(load("lock_owned"), params).fetchone()
        if job is None or job.unknown_effects == 0:
            return None
        told = _told(connection, job.id, ending)
        row = connection.execute(load("settle_unknown"), {**params, **_decided(job, told)}).fetchone()
    assert row is not None
    return State(row[0]), row[1]


def keep_evidence(
    connection: psycopg.Connection[Any], *, id: int, fence: int, worker_id: int, evidence: Mapping[str, Any]
) -> bool:
    """Keep what a superseded owner says too late, on the attempt that it lost; return whether there is one."""
    params = {"id": id, "fence": fence, "worker_id": worker_id, "evidence": json.dumps(evidence, default=str)}
    return connection.execute(load("keep_evidence"), params).fetchone() is not None


def _told(connection: psycopg.Connection[Any], id: int, ending: Unsettled) -> Unsettled:
    """Say what is wrong with a run that swallowed the exception and returned as if nothing were unknown."""
    if not ending.has_started or ending.description is not None:
        return ending
    unknown = tuple(effect.name for effect in read_effects(connection, id) if effect.is_unknown())
    return replace(ending, failure_class=FailureClass.SYSTEM, description=describe(OutcomeUnknownError(id, unknown)))


def _decided(job: _Owned, ending: Unsettled) -> dict[str, Any]:
    used_up = ending.has_started and job.attempts + 1 >= job.max_attempts
    facts = Facts(
        recovery=job.recovery,
        unknown_effects=job.unknown_effects,
        stop_requested=job.stop_requested,
        exhausted=used_up or not ending.is_retryable,
        replay_safe=job.replay_safe,
    )
    target = decide(facts)
    description = ending.description
    return {
        "target": str(target),
        "probe": asks_probe(facts),
        "charge": int(ending.has_started and target is State.RETRYING),
        "run_seconds": ending.run_seconds,
        "delay_seconds": _delay(job, ending),
        "failure_class": None if ending.failure_class is None else str(ending.failure_class),
        "error_class": None if description is None else description.class_path,
        "message": None if description is None else description.message,
        "traceback": None if description is None else description.traceback,
    }


def _delay(job: _Owned, ending: Unsettled) -> float:
    if ending.delay_seconds is not None:
        return ending.delay_seconds
    settings = conf.current()
    return delay_seconds(
        job.attempts + 1, base_seconds=settings.backoff_base_seconds, cap_seconds=settings.backoff_cap_seconds
    )
