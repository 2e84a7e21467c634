"""Lease the right to ask about an unknown outcome, and write down what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psycopg
from psycopg.rows import args_row

from .. import conf
from ..sql import load
from ..states import Stage, State
from ..verdicts import verdict
from .connecting import transaction
from .effects import EffectRow, read_effects


@dataclass(frozen=True, slots=True)
class Question:
    """A leased question: which job, under which fence, and the how-manieth it is. `args`, `kwargs` are JSON texts."""

    id: int
    fence: int
    task: str
    queue: str
    operation_key: str | None
    probes: int
    args: str | None
    kwargs: str | None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a question came to. `stage` None settles nothing: the next one is due after the delay, or never."""

    answer: str
    detail: str
    stage: Stage | None = None
    result: str | None = None
    remote_reference: str | None = None
    delay_seconds: float | None = None


def lease_question(
    connection: psycopg.Connection[Any], *, worker_id: int, tasks: Sequence[str], timeout_seconds: float
) -> tuple[Question, EffectRow] | None:
    """Lease the longest due question; return it with the first effect whose outcome is unknown, None without one."""
    params = {"tasks": list(tasks), "timeout_seconds": timeout_seconds}
    with (
        transaction(connection, timeout_seconds=conf.current().claim_timeout_seconds),
        connection.cursor(row_factory=args_row(Question)) as cursor,
    ):
        question = cursor.execute(load("lease_probe"), params).fetchone()
        if question is None:
            return None
        effect = next(effect for effect in read_effects(connection, question.id) if effect.is_unknown())
        noted = {"id": question.id, "fence": question.fence, "worker_id": worker_id, "effect": effect.name}
        connection.execute(load("note_probe"), noted)
    return question, effect


def write_reply(connection: psycopg.Connection[Any], question: Question, effect: str, reply: Reply) -> State | None:
    """Write what a question came to, and return where the job stands; None when it came too late to count.

    It is kept with the question either way.
    """
    params = {"id": question.id, "fence": question.fence}
    with transaction(connection, timeout_seconds=conf.current().claim_timeout_seconds):
        locked = connection.execute(load("lock_probed"), params).fetchone()
        detail = reply.detail if locked else f"Too late: a verdict or a later question came first. {reply.detail}"
        connection.execute(load("answer_probe"), {**params, "answer": reply.answer, "detail": detail})
        if locked is None:
            return None
        if reply.stage is None:
            connection.execute(load("postpone_probe"), {**params, "delay_seconds": reply.delay_seconds})
            return State.UNKNOWN
        written = _verdict(connection, question, effect, reply, reply.stage)
        settled = connection.execute(load("reconcile"), {**params, **written, "version_seen": locked[0]}).fetchone()
    assert settled is not None
    return State(settled[1])


def next_question_seconds(connection: psycopg.Connection[Any], *, tasks: Sequence[str]) -> float | None:
    """Return how long it is until the next question is due; None when there is none."""
    row = connection.execute(load("next_probe"), {"tasks": list(tasks)}).fetchone()
    return None if row is None else row[0]


def _verdict(
    connection: psycopg.Connection[Any], question: Question, effect: str, reply: Reply, stage: Stage
) -> dict[str, Any]:
    effects = [asdict(row) for row in read_effects(connection, question.id)]
    return {
        **verdict(effects, effect, stage=stage, target=State.RETRYING, probe_next=True),
        "result": reply.result,
        "remote_reference": reply.remote_reference,
        "evidence": reply.detail,
        "actor_name": "probe",
    }
