"""Tell a job in the words of Django Tasks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from .compat import Task, TaskError, TaskResult, TaskResultStatus
from .instants import as_project
from .payloads import decode
from .protocol.claiming import Lease
from .protocol.reading import AttemptRow, JobRow
from .protocol.settling import Ending, Failure, Written
from .states import AttemptOutcome, State

STATUSES = {
    State.PENDING: TaskResultStatus.READY,
    State.RETRYING: TaskResultStatus.READY,
    State.PAUSED: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.UNKNOWN: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.DEAD: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
"""An unknown outcome counts as running: called failed, the caller would enqueue it again."""
_STATUSES_BY_TEXT: dict[str, Any] = {str(state): status for state, status in STATUSES.items()}
"""A state that a newer version wrote has none, and counts as running for the same reason."""

_CANCELLED = TaskError(exception_class_path="pgqueue.exceptions.JobCancelledError", traceback="")


def enqueued(task: Task[..., Any], id: int, created_at: datetime, args: Any, kwargs: Any) -> TaskResult:
    """Return the result of a job that was just enqueued."""
    return _result(task, id, TaskResultStatus.READY, created_at, args=list(args), kwargs=dict(kwargs))


def started(task: Task[..., Any], lease: Lease, args: Any, kwargs: Any, at: datetime) -> TaskResult:
    """Return the result of a job that is about to run; it has one worker id for each attempt that counted."""
    return _result(
        task,
        lease.id,
        TaskResultStatus.RUNNING,
        lease.created_at,
        args=args,
        kwargs=kwargs,
        started_at=at,
        last_attempted_at=at,
        worker_ids=[str(lease.worker_id)] * (lease.attempts + 1),
    )


def finished(task: Task[..., Any], lease: Lease, ending: Ending, written: Written) -> TaskResult:
    """Return the result of a job that ended in its first attempt, without reading it back."""
    status = STATUSES[written.state]
    started_at = written.at - timedelta(seconds=ending.run_seconds)
    result = _result(
        task,
        lease.id,
        status,
        lease.created_at,
        args=decode(lease.args) or [],
        kwargs=decode(lease.kwargs) or {},
        started_at=started_at,
        finished_at=written.at,
        last_attempted_at=started_at,
        errors=[] if ending.failure is None else [_error(ending.failure)],
        worker_ids=[str(lease.worker_id)],
    )
    if status == TaskResultStatus.SUCCESSFUL:
        object.__setattr__(result, "_return_value", decode(ending.result))
    return result


def stored(task: Task[..., Any], job: JobRow, attempts: Sequence[AttemptRow]) -> TaskResult:
    """Return the result of a job as it stands in the database."""
    status = _STATUSES_BY_TEXT.get(job.state, TaskResultStatus.RUNNING)
    ran = [attempt for attempt in attempts if attempt.started_at is not None]
    result = _result(
        task,
        job.id,
        status,
        job.created_at,
        args=decode(job.args) or [],
        kwargs=decode(job.kwargs) or {},
        started_at=ran[0].started_at if ran else job.started_at,
        finished_at=job.finished_at,
        last_attempted_at=_latest(job.started_at, job.claimed_at),
        errors=_errors(job, attempts),
        worker_ids=_worker_ids(job, attempts),
    )
    if status == TaskResultStatus.SUCCESSFUL:
        object.__setattr__(result, "_return_value", decode(job.result))
    return result


def _latest(*instants: datetime | None) -> datetime | None:
    """A claim does not clear what the attempt before it wrote, and a lost attempt wrote no start."""
    return max((instant for instant in instants if instant is not None), default=None)


def _result(
    task: Task[..., Any], id: int, status: Any, enqueued_at: datetime, *, args: Any, kwargs: Any, **more: Any
) -> TaskResult:
    fields: dict[str, Any] = {
        "started_at": None,
        "finished_at": None,
        "last_attempted_at": None,
        "errors": [],
        "worker_ids": [],
        **more,
    }
    for name in ("started_at", "finished_at", "last_attempted_at"):
        fields[name] = as_project(fields[name])
    return TaskResult(
        task=task,
        id=str(id),
        status=status,
        enqueued_at=as_project(enqueued_at),
        args=args,
        kwargs=kwargs,
        backend=task.backend,
        **fields,
    )


def _errors(job: JobRow, attempts: Sequence[AttemptRow]) -> list[TaskError]:
    errors = [
        TaskError(exception_class_path=attempt.error_class or "builtins.Exception", traceback=attempt.traceback)
        for attempt in attempts
        if attempt.outcome != AttemptOutcome.SUCCEEDED
    ]
    return [*errors, _CANCELLED] if job.state == State.CANCELLED else errors


def _error(failure: Failure) -> TaskError:
    description = failure.description
    return TaskError(exception_class_path=description.class_path, traceback=description.traceback)


def _worker_ids(job: JobRow, attempts: Sequence[AttemptRow]) -> list[str]:
    """One id per claim that ran; the latest may be told by the job row alone."""
    ids = [str(attempt.worker_id) for attempt in attempts]
    if job.state == State.RUNNING:
        return [*ids, str(job.worker_id)]
    told_by_row = job.state == State.SUCCEEDED and job.fence not in {attempt.fence for attempt in attempts}
    return [*ids, str(job.settled_by)] if told_by_row else ids
