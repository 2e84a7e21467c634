"""Run one lease and say what came of it. Nothing that a task raises gets out of here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from django.utils import timezone

from . import registry, signalling
from .backoff import delay_seconds, retry_after_seconds
from .compat import Task
from .context import JobContext
from .exceptions import JobStoppedError, JobTimeoutError, Retry
from .failures import classify, describe, is_retryable
from .foreign import class_name, is_a
from .holding import Held
from .logs import get_logger
from .payloads import decode, encode_result
from .protocol.claiming import Lease
from .protocol.completing import commit_alone
from .protocol.connecting import job_alias
from .protocol.lending import lender
from .protocol.settling import Ending, EndingKind, Failure
from .reporting import reportable
from .results import started
from .states import Recovery, Settle
from .transactional import call_and_complete

logger = get_logger(__name__)


class Prepared(NamedTuple):
    """A lease whose task is about to be called, and with what."""

    held: Held
    task: Task[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    began_at: float

    def call(self) -> Any:
        """Call the task here and now; an async one on an event loop of its own."""
        # Django's `call` would ask again whether it is async, which takes longer than a short job.
        call = self.task.call if registry.is_async(self.held.lease.task) else self.task.func
        return call(*self.args, **self.kwargs)


def run(
    held: Held,
    *,
    call: Callable[[Prepared], Any] = Prepared.call,
    on_error: Callable[[BaseException], object] | None = None,
) -> Ending:
    """Run a job to its ending, in three steps: prepare, call, conclude.

    `on_error` is given what the task raised: the ending holds only what may be stored of it.
    """
    prepared = prepare(held, on_error=on_error)
    if isinstance(prepared, Ending):
        return prepared
    body = partial(call, prepared)
    if held.lease.recovery == Recovery.TRANSACTIONAL:
        return _conclude_transactional(prepared, body, on_error=on_error)
    ending = conclude(prepared, body, on_error=on_error)
    return settle_at_once(held, ending) if is_settled_at_once(prepared, ending) else ending


def prepare(held: Held, *, on_error: Callable[[BaseException], object] | None = None) -> Prepared | Ending:
    """Find the task and its arguments, and tell `task_started`: receivers may use the database.

    A lease that may have run out is given back unstarted.
    """
    if held.may_be_lost():
        return Ending(EndingKind.RELEASE, held.lease.id, held.lease.fence)
    began_at = time.monotonic()
    try:
        task = registry.find(held.lease.task)
        _refuse_unfit(held.lease)
        args, kwargs = _arguments(held, task)
    except BaseException as error:
        return _caught(held, error, began_at, on_error)
    return Prepared(held, task, args, kwargs, began_at)


def _refuse_unfit(lease: Lease) -> None:
    """Declaring refuses it, but a job may be older than its task's last change. It waits, whatever `bury_on` says."""
    if lease.recovery == Recovery.TRANSACTIONAL and registry.is_async(lease.task):
        raise Retry(
            f"{lease.task} is a coroutine function now, and job {lease.id} was enqueued as transactional:"
            " a coroutine has no transaction around it. Deploy the plain function for the jobs that wait,"
            " or enqueue them anew."
        )


def conclude(
    prepared: Prepared, call: Callable[[], Any], *, on_error: Callable[[BaseException], object] | None = None
) -> Ending:
    """Turn what a call returns or raises into an ending."""
    held, began_at = prepared.held, prepared.began_at
    try:
        result = encode_result(call(), max_bytes=held.settings().max_result_bytes)
    except BaseException as error:
        return _caught(held, error, began_at, on_error)
    return Ending(EndingKind.COMPLETE, held.lease.id, held.lease.fence, time.monotonic() - began_at, result=result)


def is_settled_at_once(prepared: Prepared, ending: Ending) -> bool:
    """Say whether an ending waits for no others: a completion whose task asks for that, or whose run called an effect.

    A run on a connection of a test's is settled there.
    """
    if ending.kind is not EndingKind.COMPLETE or prepared.held.lend is not None:
        return False
    return prepared.held.has_effects or getattr(prepared.task, "settle", Settle.TOGETHER) == Settle.EACH


def settle_at_once(held: Held, ending: Ending) -> Ending:
    """Write a completion here and now, on this thread, and return it with what was written.

    The dispatcher is told as of any other, and that it is written. What is not, it writes, or finds out why not.
    """
    if held.may_be_lost():
        return ending  # Only the dispatcher finds out; and where the server is away, nobody has to wait for it here.
    began_at = time.monotonic()
    try:
        with lender.lend(job_alias()) as connection:
            written = commit_alone(connection, worker_id=held.lease.worker_id, ending=ending).get(ending.id)
    except Exception as error:
        logger.warning("settle.postponed job=%d error=%s", ending.id, class_name(error))
        return ending
    return ending._replace(written=written, settle_seconds=time.monotonic() - began_at)


def _conclude_transactional(
    prepared: Prepared, body: Callable[[], Any], *, on_error: Callable[[BaseException], object] | None
) -> Ending:
    held, began_at = prepared.held, prepared.began_at
    try:
        return call_and_complete(held, body)
    except BaseException as error:
        return _caught(held, error, began_at, on_error)


def interrupted(held: Held, error: BaseException) -> Ending:
    """Return the ending of a run that something broke off from outside; what it had come to is not known."""
    failure = Failure(classify(error), describe(error))
    delay = held.settings().backoff_base_seconds
    return Ending(EndingKind.RETRY, held.lease.id, held.lease.fence, delay_seconds=delay, failure=failure)


def timed_out(held: Held, *, run_seconds: float) -> Ending:
    """Return the ending of a run that nothing could stop, to be written when its process is about to end."""
    return _failed(held, JobTimeoutError(held.lease.id, held.limit_seconds()), run_seconds)


def _arguments(held: Held, task: Task[..., Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return what to call the task with. A TaskResult is made only if wanted."""
    lease = held.lease
    args = [] if lease.args is None else decode(lease.args)
    kwargs = {} if lease.kwargs is None else decode(lease.kwargs)
    heard = signalling.start_is_heard()
    if not (task.takes_context or heard):
        return args, kwargs
    result = started(task, lease, args, kwargs, timezone.now())
    if heard:
        signalling.send_started(type(task.get_backend()), result)
    return ([JobContext(held, result), *args] if task.takes_context else args), kwargs


def _caught(
    held: Held, error: BaseException, began_at: float, on_error: Callable[[BaseException], object] | None
) -> Ending:
    if on_error is not None:
        on_error(error)
    return _failed(held, _reason(held, error), time.monotonic() - began_at)


def _reason(held: Held, error: BaseException) -> BaseException:
    """Say with its facts what the worker itself threw into the run; anything else is the task's own."""
    told: BaseException
    if held.timed_out and is_a(error, (JobTimeoutError, asyncio.CancelledError)):
        told = JobTimeoutError(held.lease.id, held.limit_seconds())
    elif held.stop_requested and is_a(error, asyncio.CancelledError):
        told = JobStoppedError(held.lease.id)
    else:
        return error
    told.__cause__ = error
    return told


def _failed(held: Held, error: BaseException, run_seconds: float) -> Ending:
    lease = held.lease
    task = registry.get(lease.task)
    failure_class = classify(error, retry_on=getattr(task, "retry_on", ()), bury_on=getattr(task, "bury_on", ()))
    failure = Failure(failure_class, describe(error))
    ending = Ending(EndingKind.BURY, lease.id, lease.fence, run_seconds, failure=failure)
    if is_retryable(failure_class):
        ending = ending._replace(kind=EndingKind.RETRY, delay_seconds=_delay(error, task, held))
    is_last = ending.kind is EndingKind.BURY or lease.attempts + 1 >= lease.max_attempts
    if is_last and not held.stop_requested:
        ending = ending._replace(error=reportable(error, failure.description))
    _log(held, failure, is_last=is_last)
    return ending


def _delay(error: BaseException, task: Task[..., Any] | None, held: Held) -> float:
    told = retry_after_seconds(error)
    if told is not None:
        return told
    settings = held.settings()
    base = getattr(task, "backoff_seconds", None) or settings.backoff_base_seconds
    return delay_seconds(held.lease.attempts + 1, base_seconds=base, cap_seconds=settings.backoff_cap_seconds)


def _log(held: Held, failure: Failure, *, is_last: bool) -> None:
    """Log the failure without its message: that may hold what the task was given.

    It is no error here: a retry may help, what was asked to stop has stopped, and of a dead job Django's logger has
    the exception. A second line at that level would be a second event for an error tracker.
    """
    lease = held.lease
    facts = (lease.id, lease.task, lease.attempts + 1, lease.max_attempts, failure.failure_class)
    class_path = failure.description.class_path
    if held.stop_requested:
        logger.info("job.stopped job=%d task=%s attempt=%d/%d class=%s error=%s", *facts, class_path)
        return
    last = "yes" if is_last else "no"
    logger.warning("job.failed job=%d task=%s attempt=%d/%d class=%s error=%s last=%s", *facts, class_path, last)
