"""Run jobs inside a test, one after the other, through the statements that a worker sends."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db.transaction import TransactionManagementError

from .. import execution, registry
from ..holding import Held
from ..payloads import decode
from ..protocol.borrowing import borrowed, isolated
from ..protocol.claiming import Lease
from ..protocol.connecting import job_alias
from ..protocol.reading import read_job
from ..protocol.rehearsing import bring_forward, list_due
from ..protocol.settling import Ending, Written, settle
from ..states import State
from ..worker.finishing import notice_of
from .leases import WORKER_ID, claim, noting

_OF_TASKS = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""What a task may raise of itself. Anything else, as Ctrl-C or `pytest.fail`, is meant for the test."""


@dataclass(frozen=True, slots=True)
class RanJob:
    """A job that was run once, and what came of that."""

    job_id: int
    task: str
    state: State
    """Where the job stands now: `retrying` and `dead` after an exception, for example."""
    result: Any = None
    """What the task returned, as it comes back from the database."""
    error_class: str | None = None
    """Class path of what the task raised, `builtins.ValueError`, and what was stored of its message."""
    error_message: str | None = None


def run_jobs(
    *,
    queues: Sequence[str] | None = None,
    limit: int = 1_000,
    using: str | None = None,
    raise_errors: bool = False,
) -> list[RanJob]:
    """Run the jobs that are due now, once each, by priority, then by time, then by id; tell what came of them.

    Jobs that these enqueue or that are to be retried are left for the next call. What a task raises ends its
    attempt, as in a worker; `raise_errors` raises the first such exception here, once the ending is written.
    Raise `TransactionManagementError` when the test's transaction is aborted, or a task leaves it so and returns.
    """
    alias = using or job_alias()
    registry.discover()
    with borrowed(alias) as connection:
        due = list_due(connection, tasks=registry.names(), queues=queues)
    ran: list[RanJob] = []
    for id in due:
        if len(ran) >= limit:
            break
        lease = claim(alias, id)
        if lease is not None:
            ran.append(_run(alias, lease, raise_errors=raise_errors))
    return ran


def drain_jobs(
    *,
    include_future: bool = False,
    max_jobs: int = 10_000,
    queues: Sequence[str] | None = None,
    using: str | None = None,
    raise_errors: bool = False,
) -> list[RanJob]:
    """Run jobs until nothing is due, those that jobs enqueue included; the rest as for `run_jobs`.

    `include_future` also runs what waits for its time, retries among them, the next one first: each is made due
    when nothing else is. Raise `RuntimeError` after more than `max_jobs`: they would go on for ever.
    """
    alias = using or job_alias()
    ran: list[RanJob] = []
    while True:
        room = max_jobs + 1 - len(ran)
        more = run_jobs(queues=queues, limit=room, using=alias, raise_errors=raise_errors)
        ran += more
        if len(ran) > max_jobs:
            raise RuntimeError(
                f"More than {max_jobs:,} jobs ran and there is no end. The last one was of {ran[-1].task}: "
                f"do jobs enqueue each other?"
            )
        if not more and not (include_future and _let_time_pass(alias, queues)):
            return ran


def _let_time_pass(alias: str, queues: Sequence[str] | None) -> bool:
    with borrowed(alias) as connection:
        return bring_forward(connection, tasks=registry.names(), queues=queues)


def _run(alias: str, lease: Lease, *, raise_errors: bool) -> RanJob:
    """Run a lease in a context of its own, as a worker's thread does: no language, no variable of the test's."""
    errors: list[BaseException] = []
    with noting(Held(lease, safe_until=float("inf"), lend=partial(borrowed, alias))) as held:
        surroundings = contextvars.Context()
        ending, aborted = isolated(alias, lambda: surroundings.run(execution.run, held, on_error=errors.append))
    ran = _settle(alias, lease, ending)
    for error in errors:
        if raise_errors or not isinstance(error, _OF_TASKS):
            raise error
    if aborted and not errors:
        raise TransactionManagementError(
            f"Task {lease.task} caught a database error outside an atomic block and returned: in the transaction of "
            f"a test, all that it wrote is lost. Put the statement that may fail into an atomic block, or test the "
            f"task with TransactionTestCase or django_db(transaction=True)."
        )
    return ran


def _settle(alias: str, lease: Lease, ending: Ending) -> RanJob:
    with borrowed(alias) as connection:
        settled = settle(connection, worker_id=WORKER_ID, endings=[ending])
    for _, error in settled.refused:
        raise error
    written = settled.written.get(lease.id)
    if written is None:
        state = _state_of(alias, lease.id)
    else:
        state = written.state
        _tell(alias, lease, ending, written)
    description = None if ending.failure is None else ending.failure.description
    return RanJob(
        job_id=lease.id,
        task=lease.task,
        state=state,
        result=decode(ending.result) if state is State.SUCCEEDED else None,
        error_class=None if description is None else description.class_path,
        error_message=None if description is None else description.message,
    )


def _state_of(alias: str, id: int) -> State:
    """Read where a job stands whose lease was lost while it ran."""
    found = read_job(alias, id)
    assert found is not None
    return State(found[0].state)


def _tell(alias: str, lease: Lease, ending: Ending, written: Written) -> None:
    notice = notice_of([(lease, ending)], {lease.id: written}, alias=alias)
    if notice is not None:
        isolated(alias, lambda: contextvars.Context().run(notice))
