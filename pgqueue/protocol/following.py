"""Enqueue what a task names to follow its job, in the transaction that ended that: `on_dead`, and `compensation`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import psycopg

from .. import conf, registry
from ..exceptions import UnknownTaskError
from ..payloads import digest
from ..sql import load
from ..states import Lane, Recovery
from .inserting import NewJob

Execute = Callable[[str, Mapping[str, Any]], Sequence[Any]]
"""Run a statement by its name and return its rows as tuples."""


def on(connection: psycopg.Connection[Any]) -> Execute:
    """Return what runs statements on a connection of the queue's own."""
    return lambda name, params: connection.execute(load(name), params).fetchall()


def enqueue_on_dead(execute: Execute, ids: Iterable[int]) -> None:
    """Enqueue one job for each of the dead that names a task; it is given the dead job's id."""
    dead = list(ids)
    for id, task, queue, priority in execute("find_on_dead", {"ids": dead}) if dead else ():
        execute("enqueue", _follower(id, task, queue=queue, priority=priority).params())


def compensate(
    execute: Execute, job: Mapping[str, Any], effect: Mapping[str, Any], *, reference: str
) -> tuple[int, str]:
    """Enqueue what undoes an effect of a job, once whatever happens; return that job's id, and its queue.

    `job` has id, queue, and `compensation`, the name of the task. The operation key is the effect's.
    """
    told = {
        "job_id": job["id"],
        "effect": effect["name"],
        "operation_key": effect["operation_key"],
        "remote_reference": reference,
    }
    follower = _follower(job["id"], job["compensation"], queue=job["queue"], priority=0)
    follower = follower._replace(args=None, kwargs=json.dumps(told))
    spent = {"operation_key": f"compensate:{effect['operation_key']}", "digest": digest(None, follower.kwargs)}
    params = {**follower._asdict(), **spent}
    rows = execute("enqueue_once", params) or execute("find_operation", params)
    return int(rows[0][0]), follower.queue


def compensation_of(name: str) -> str | None:
    """Return the name of the task that undoes effects of another one; None where that declares none, or is unknown."""
    try:
        return _name_of(getattr(registry.find_or_discover(name), "compensation", None))
    except UnknownTaskError:
        return None


def _follower(id: int, name: str, *, queue: str, priority: int) -> NewJob:
    """Return the job to insert; where this process does not know its task, beside the one that it follows."""
    task = registry.get(name)
    return NewJob(
        queue=queue if task is None else task.queue_name,
        task=name,
        args=f"[{id}]",
        kwargs=None,
        priority=priority if task is None else int(task.priority),
        lane=Lane.PLAIN,
        max_attempts=getattr(task, "max_attempts", None) or conf.current().max_attempts,
        recovery=getattr(task, "recovery", Recovery.UNDECLARED),
        max_run_seconds=getattr(task, "max_run_seconds", None),
        on_dead=on_dead_of(task),
        parent_id=id,
    )


def on_dead_of(task: Any) -> str | None:
    """Return the name of what a task's `on_dead` is: a name, or a task."""
    return _name_of(getattr(task, "on_dead", None))


def _name_of(named: Any) -> str | None:
    name: str | None = getattr(named, "module_path", named)
    return name
