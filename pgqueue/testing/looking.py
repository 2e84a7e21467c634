"""Look at jobs inside a test, and assert that one was enqueued."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .. import conf
from ..compat import Task
from ..models import Job, JobPayload
from ..payloads import decode, encode_arguments
from ..protocol.connecting import job_alias

MOST_SHOWN = 20
"""Jobs that a failed assertion lists."""


@dataclass(frozen=True, slots=True)
class EnqueuedJob:
    """A job as it stands, with its arguments as the task gets them."""

    id: int
    task: str
    queue: str
    args: list[Any]
    kwargs: dict[str, Any]
    priority: int
    run_at: datetime
    tenant: str | None
    shard_key: str | None
    operation_key: str | None
    state: str

    def __str__(self) -> str:
        return f"job {self.id}: {_shown_call(self.task, self.args, self.kwargs)}, {self.state} in queue {self.queue!r}"


def enqueued(
    task: Task[..., Any] | str | None = None, *, queue: str | None = None, state: str | None = None
) -> list[EnqueuedJob]:
    """Return the jobs there are, oldest first: of one task, queue or state, or all, those that have ended included."""
    wanted: dict[str, Any] = {"task": None if task is None else _name(task), "queue": queue, "state": state}
    given = {column: value for column, value in wanted.items() if value is not None}
    alias = job_alias()
    jobs = Job.objects.using(alias).filter(**given).order_by("id")
    payloads = JobPayload.objects.using(alias).in_bulk([job.pk for job in jobs])
    return [_enqueued(job, payloads.get(job.pk)) for job in jobs]


def assert_enqueued(task: Task[..., Any] | str, *args: Any, **kwargs: Any) -> EnqueuedJob:
    """Assert that a job was enqueued with exactly these arguments, and return the first such; with none given, any.

    Arguments are compared as the task gets them: a tuple is a list. Whether the job has run does not matter.
    """
    matching = _matching(task, args, kwargs)
    if not matching:
        raise AssertionError(f"{_shown_call(_name(task), args, kwargs)} was not enqueued. {_listing(task)}")
    return matching[0]


def assert_not_enqueued(task: Task[..., Any] | str, *args: Any, **kwargs: Any) -> None:
    """Assert that no job was enqueued with exactly these arguments; with none given, no job of the task at all."""
    matching = _matching(task, args, kwargs)
    if matching:
        raise AssertionError(f"{_shown_call(_name(task), args, kwargs)} was enqueued: {matching[0]}.")


def _matching(task: Task[..., Any] | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[EnqueuedJob]:
    jobs = enqueued(task)
    if not args and not kwargs:
        return jobs
    texts = encode_arguments(args, kwargs, max_bytes=conf.current().max_payload_bytes)
    expected = (decode(texts[0]) or [], decode(texts[1]) or {})
    return [job for job in jobs if (job.args, job.kwargs) == expected]


def _enqueued(job: Job, payload: JobPayload | None) -> EnqueuedJob:
    return EnqueuedJob(
        id=job.pk,
        task=job.task,
        queue=job.queue,
        args=(payload.args if payload else None) or [],
        kwargs=(payload.kwargs if payload else None) or {},
        priority=job.priority,
        run_at=job.run_at,
        tenant=job.tenant,
        shard_key=job.shard_key,
        operation_key=job.operation_key,
        state=job.state,
    )


def _listing(task: Task[..., Any] | str) -> str:
    """List the jobs of the task, or where there are none, all jobs."""
    jobs = enqueued(task) or enqueued()
    if not jobs:
        return "No job was."
    lines = [f"  {job}" for job in jobs[:MOST_SHOWN]]
    more = [f"  and {len(jobs) - MOST_SHOWN} more"] if len(jobs) > MOST_SHOWN else []
    return "\n".join(["There are:", *lines, *more])


def _shown_call(task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    shown = [repr(value) for value in args] + [f"{name}={value!r}" for name, value in kwargs.items()]
    return f"{task}({', '.join(shown)})"


def _name(task: Task[..., Any] | str) -> str:
    return task if isinstance(task, str) else task.module_path
