"""Tasks that the tests enqueue."""

from __future__ import annotations

from typing import Any

from pgqueue import Bury, Retry, task

from . import async_tasks as async_tasks
from . import effect_tasks as effect_tasks
from . import fault_tasks as fault_tasks
from . import lab_tasks as lab_tasks
from . import matrix_tasks as matrix_tasks
from . import storm_tasks as storm_tasks


@task
def add(left: int, right: int = 0) -> int:
    return left + right


@task
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@task
def fail(message: str = "no") -> None:
    raise RuntimeError(message)


@task(max_attempts=1)
def fail_once_only() -> None:
    raise RuntimeError("no")


@task
def bury(reason: str = "hopeless") -> None:
    raise Bury(reason)


@task
def retry_after(seconds: float) -> None:
    raise Retry("later", after_seconds=seconds)


@task(takes_context=True)
def tell_context(context: Any) -> dict[str, Any]:
    return {
        "job_id": context.job_id,
        "attempt": context.attempt,
        "fence": context.fence,
        "operation_key": context.operation_key,
        "lease_lost": context.lease_lost,
        "stop_requested": context.stop_requested,
    }
