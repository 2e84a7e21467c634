"""Enqueue what a task's `on_dead` names, in the transaction that made its job dead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import psycopg

from .. import conf, registry
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
        execute("enqueue", _follower(id, task, queue=queue, priority=priority)._asdict())


def _follower(id: int, name: str, *, queue: str, priority: int) -> NewJob:
    """Return the job to insert; where this process does not know its task, beside the dead one."""
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
    named = getattr(task, "on_dead", None)
    name: str | None = getattr(named, "module_path", named)
    return name
