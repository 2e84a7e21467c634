"""Run one lease and say what came of it. Nothing that a task raises gets out of here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from django.utils import timezone

from . import conf, registry, signalling
from .backoff import delay_seconds, retry_after_seconds
from .compat import Task
from .context import JobContext
from .failures import classify, describe, is_retryable
from .holding import Held
from .payloads import decode, encode_result
from .protocol.claiming import Lease
from .protocol.settling import Ending, EndingKind, Failure
from .results import started

logger = logging.getLogger(__name__)


def run(held: Held, *, on_error: Callable[[BaseException], object] | None = None) -> Ending:
    """Run a job to its ending. A lease that may have run out is given back unstarted.

    `on_error` is given what the task raised: the ending holds only what may be stored of it.
    """
    lease = held.lease
    if held.may_be_lost():
        return Ending(EndingKind.RELEASE, lease.id, lease.fence)
    began = time.monotonic()
    try:
        result = _run(held)
    except BaseException as error:
        if on_error is not None:
            on_error(error)
        return _failed(held, error, time.monotonic() - began)
    return Ending(EndingKind.COMPLETE, lease.id, lease.fence, time.monotonic() - began, result=result)


def _run(held: Held) -> str | None:
    task = registry.find(held.lease.task)
    args, kwargs = _arguments(held, task)
    value = task.call(*args, **kwargs)
    return encode_result(value, max_bytes=conf.current().max_result_bytes)


def _arguments(held: Held, task: Task[..., Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return what to call the task with; tell `task_started` on the way. A TaskResult is made only if wanted."""
    lease = held.lease
    args = decode(lease.args) or []
    kwargs = decode(lease.kwargs) or {}
    heard = signalling.start_is_heard()
    if not (task.takes_context or heard):
        return args, kwargs
    result = started(task, lease, args, kwargs, timezone.now())
    if heard:
        signalling.send_started(type(task.get_backend()), result)
    return ([JobContext(held, result), *args] if task.takes_context else args), kwargs


def _failed(held: Held, error: BaseException, run_seconds: float) -> Ending:
    lease = held.lease
    task = registry.get(lease.task)
    failure_class = classify(error, retry_on=getattr(task, "retry_on", ()), bury_on=getattr(task, "bury_on", ()))
    failure = Failure(failure_class, describe(error))
    if not is_retryable(failure_class):
        _log(lease, failure, level=logging.ERROR)
        return Ending(EndingKind.BURY, lease.id, lease.fence, run_seconds, failure=failure)
    is_last = lease.attempts + 1 >= lease.max_attempts
    _log(lease, failure, level=logging.ERROR if is_last else logging.WARNING)
    delay = _delay(error, task, lease.attempts + 1)
    return Ending(EndingKind.RETRY, lease.id, lease.fence, run_seconds, delay_seconds=delay, failure=failure)


def _delay(error: BaseException, task: Task[..., Any] | None, failures: int) -> float:
    told = retry_after_seconds(error)
    if told is not None:
        return told
    settings = conf.current()
    base = getattr(task, "backoff_seconds", None) or settings.backoff_base_seconds
    return delay_seconds(failures, base_seconds=base, cap_seconds=settings.backoff_cap_seconds)


def _log(lease: Lease, failure: Failure, *, level: int) -> None:
    """Log the failure without its message: that may hold what the task was given."""
    logger.log(
        level,
        "job.failed job=%d task=%s attempt=%d/%d class=%s error=%s",
        lease.id,
        lease.task,
        lease.attempts + 1,
        lease.max_attempts,
        failure.failure_class,
        failure.description.class_path,
    )
