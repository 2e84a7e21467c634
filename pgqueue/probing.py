"""Ask what became of an effect: call the task's probe, and turn its answer into a verdict or another question."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from django.db import connections

from . import conf, registry
from .backoff import delay_seconds
from .failures import describe
from .foreign import OF_PROJECT, class_name, is_a, read
from .instants import as_project
from .logs import get_logger
from .payloads import decode, encode_result
from .probes import Answer, CannotTell, DidNotHappen, Happened, ProbeContext, ProbedEffect, StillGoing
from .protocol.effects import EffectRow
from .protocol.probing import Question, Reply, lease_question, write_reply
from .states import Stage, State

logger = get_logger(__name__)

Lend = Callable[[], AbstractContextManager[psycopg.Connection[Any]]]
LEASE_MARGIN_SECONDS = 5.0
"""How much longer a question is leased than the probe may take: its answer must still be written."""
LONGEST_DELAY_SECONDS = 86_400.0


def ask_next(
    lend: Lend, *, worker_id: int, tasks: Sequence[str], call: Callable[[Callable[[], Answer]], Answer] | None = None
) -> tuple[int, State | None] | None:
    """Ask the longest due question; return the job and where it stands, None for it when the answer came too late.

    Return None when none is due. No connection is held while the other side is asked. `call` calls the probe, within
    its time: a thread cannot be killed, so by default it is left behind.
    """
    timeout = conf.current().probe_timeout_seconds
    with lend() as connection:
        leased = lease_question(
            connection, worker_id=worker_id, tasks=tasks, timeout_seconds=timeout + LEASE_MARGIN_SECONDS
        )
    if leased is None:
        return None
    question, effect = leased
    try:
        answer = (call or _in_a_thread)(lambda: _ask(question, effect))
        reply = _reply(question, effect, answer)
    except OF_PROJECT as error:
        reply = _failed(question, error)
    with lend() as connection:
        state = write_reply(connection, question, effect.name, reply)
    logger.info(
        "probe.answered job=%d effect=%s answer=%s state=%s", question.id, effect.name, reply.answer, state or "late"
    )
    return question.id, state


def _ask(question: Question, effect: EffectRow) -> Answer:
    probe = registry.probe_of(question.task)
    context = ProbeContext(
        job_id=question.id,
        operation_key=question.operation_key or f"job:{question.id}",
        fence=question.fence,
        args=decode(question.args) or [],
        kwargs=decode(question.kwargs) or {},
    )
    assert effect.first_called_at is not None
    assert effect.called_at is not None
    first_called_at, called_at = as_project(effect.first_called_at), as_project(effect.called_at)
    asked = ProbedEffect(effect.name, effect.operation_key, first_called_at, called_at)
    answered = probe(context, asked)
    answer: Answer = asyncio.run(answered) if inspect.iscoroutine(answered) else answered
    return answer


def _in_a_thread(ask: Callable[[], Answer]) -> Answer:
    """Ask on a thread of its own, and wait for the answer no longer than it may take. Raise `TimeoutError`."""
    answers: list[Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=contextvars.Context().run, args=(run,), name="pgqueue-probe-call", daemon=True)
    thread.start()
    timeout = conf.current().probe_timeout_seconds
    thread.join(timeout)
    if answers:
        return answers[0]
    if errors:
        raise RuntimeError(f"the probe raised {describe(errors[0]).class_path}") from errors[0]
    raise TimeoutError(f"the probe took longer than {timeout:g} seconds")


def _reply(question: Question, effect: EffectRow, answer: Answer) -> Reply:
    if isinstance(answer, Happened):
        result = encode_result(answer.result, max_bytes=conf.current().max_result_bytes)
        told = answer.reference if answer.reference is not None else answer.result
        reference = told if isinstance(told, str) else None
        detail = "The probe found that it happened."
        return Reply("happened", detail, Stage.RESULT_KNOWN, result=result, remote_reference=reference)
    if isinstance(answer, DidNotHappen):
        return _reply_no(question, effect)
    if isinstance(answer, StillGoing):
        delay = min(max(float(answer.retry_in), 0.0), LONGEST_DELAY_SECONDS)
        return _again(question, "still_going", f"The other side is at it; asked again in {delay:g} seconds.", delay)
    if isinstance(answer, CannotTell):
        return Reply("cannot_tell", str(answer.why) or "The probe cannot tell.")
    raise TypeError(f"a probe answers Happened, DidNotHappen, StillGoing or CannotTell, not {type(answer).__name__}")


def _reply_no(question: Question, effect: EffectRow) -> Reply:
    """Believe a no only past the deadline of the call: until then the request may still arrive. That is no failure."""
    left = effect.deadline_seconds_left or 0.0
    if left > 0:
        detail = f"Not yet; the call may take effect for {left:.0f} seconds more, and is asked for again then."
        return Reply("did_not_happen", detail, delay_seconds=left + LEASE_MARGIN_SECONDS)
    return Reply("did_not_happen", "The probe found that it did not happen.", Stage.NOT_CALLED)


def _failed(question: Question, error: BaseException) -> Reply:
    logger.warning("probe.failed job=%d error=%s", question.id, class_name(error))
    settings = conf.of(queue=question.queue, task=question.task)
    delay = delay_seconds(
        question.probes, base_seconds=settings.backoff_base_seconds, cap_seconds=settings.probe_backoff_cap_seconds
    )
    cause = read(error, "__cause__")
    cause = cause if is_a(cause, Exception) else error
    return _again(question, "error", describe(cause).message, delay)


def _again(question: Question, answer: str, detail: str, delay: float) -> Reply:
    most = conf.current().max_probes
    if question.probes >= most:
        return Reply(answer, f"{detail} That was the last of {most} questions: a person must decide.")
    return Reply(answer, detail, delay_seconds=delay)
