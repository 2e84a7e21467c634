"""Put jobs into the queue, in the caller's transaction."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import transaction
from django.utils import timezone

from . import conf, notifying, registry
from .compat import InvalidTask, Task
from .exceptions import ArgumentsError, OperationKeyConflictError
from .payloads import OPTIONS_OF_USING, digest, encode_arguments
from .protocol.connecting import job_alias
from .protocol.following import on_dead_of
from .protocol.inserting import (
    Inserted,
    NewJob,
    Spent,
    insert,
    insert_in_window,
    insert_many,
    insert_once,
    insert_unique,
)
from .states import KeyOrder, Lane, OnDuplicate, Recovery, UniqueUntil

PORTION = 1_000
"""Most jobs per statement of `enqueue_many`: more gains nothing and holds more memory."""
MOST_SHAPES = 100
"""Of arguments that are remembered to fit a function; more have only those that take any name."""
PORTION_CHARACTERS = 2_000_000
"""Payload from which a statement is full. It is held some five times: as text, as bytes, and by the server."""


@dataclass(frozen=True, slots=True)
class Call:
    """A task and the arguments to run it with; `task.bind(...)` makes one."""

    task: Task[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


def enqueue(call: Call) -> Inserted | Spent:
    """Insert one job; under a key that an earlier one has, tell which job that was.

    An operation key is spent for ever, by its arguments; a unique key only for a time, whatever the arguments.

    Raise `PayloadError` for arguments that cannot be stored, with nothing written, and
    `OperationKeyConflictError` when the key was spent with other arguments, `UniqueKeyBusyError` when nobody can tell
    who has the unique key.
    """
    alias = job_alias()
    told = _read(call.task)
    job = _with_arguments(told.job, call)
    told.shape.check(call)
    if told.keys is None and notifying.may_travel(alias, job.queue):
        hinted = insert(alias, job, wakes=True)
        notifying.note(alias, job.queue)
        return hinted
    inserted = insert(alias, job) if told.keys is None else _enqueue_once(alias, job, told.keys)
    notifying.wake(alias, job.queue)
    return inserted


def enqueue_many(calls: Iterable[Call]) -> list[int]:
    """Insert many jobs, all or none, and return their ids in the order of the calls.

    `calls` may be a generator: it is read as it is written. Errors as for `enqueue`. Sends no `task_enqueued`.
    """
    alias = job_alias()
    ids: list[int] = []
    queues: set[str] = set()
    with transaction.atomic(using=alias):
        for portion in _portions(calls):
            queues |= portion.queues
            ids.extend(_insert(alias, portion))
        for queue in sorted(queues):
            notifying.wake(alias, queue)
    return ids


def refuse_unready(task: Task[..., Any]) -> None:
    """Raise `InvalidTask` for a task whose recovery policy lacks what it needs, or that must declare one."""
    recovery = getattr(task, "recovery", Recovery.UNDECLARED)
    if recovery == Recovery.PROBE and task.module_path not in registry.probed():
        raise InvalidTask(f"{task.module_path} has recovery='probe' and no probe: declare one with @{task.name}.probe.")
    if recovery == Recovery.UNDECLARED and conf.current().require_recovery:
        raise InvalidTask(
            f"{task.module_path} declares no recovery policy, and PGQUEUE['REQUIRE_RECOVERY'] is set: "
            f"say what may be done when its worker is lost, as @task(recovery='idempotent')."
        )


@dataclass(frozen=True, slots=True)
class Shape:
    """What arguments a task's function takes. The function itself is asked, and not what it wraps."""

    signature: inspect.Signature | None
    """None where Python cannot tell, as for some functions written in C."""
    leading: tuple[None, ...]
    """Stands for the context, where the task takes one."""
    fitting: set[tuple[Any, ...]]
    """How many arguments by position, and which names, were found to fit: whether they do depends on nothing else."""

    def check(self, call: Call) -> None:
        """Raise `ArgumentsError` for arguments that the function would refuse in the worker."""
        given = (len(call.args), *call.kwargs)
        if given in self.fitting or self.signature is None:
            return
        try:
            self.signature.bind(*self.leading, *call.args, **call.kwargs)
        except TypeError as error:
            options = OPTIONS_OF_USING & set(call.kwargs)
            advice = f"; options of the job go before it: task.using({min(options)}=...)" if options else ""
            raise ArgumentsError(call.task.module_path, f"{error}{advice}") from None
        if len(self.fitting) < MOST_SHAPES:
            self.fitting.add(given)


@lru_cache(maxsize=1024)
def _shape_of(function: Callable[..., Any], takes_context: bool) -> Shape:
    """Return what a function takes; read once, as each `using` makes another task of it."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        signature = None
    return Shape(signature, (None,) if takes_context else (), set())


@dataclass(frozen=True, slots=True)
class Keys:
    """What keeps a job from being enqueued twice: an operation key, or how long and how its unique key does."""

    operation_key: str | None
    until: UniqueUntil | None
    replacing: bool
    window_seconds: float | None


class Told(NamedTuple):
    """What a task says of its jobs, under the settings that were in force."""

    task: Task[..., Any]
    settings: conf.Settings
    job: NewJob
    """Without arguments."""
    keys: Keys | None
    shape: Shape


_latest: Told | None = None


def _read(task: Task[..., Any]) -> Told:
    """Return what a task says. Most calls are of the same task as the one before: what it says is then known."""
    global _latest
    told, settings = _latest, conf.current()
    if told is None or told.task is not task or told.settings is not settings:
        told = _latest = Told(task, settings, _job_of(task), _keys_of(task), _shape_of(task.func, task.takes_context))
    return told


def _keys_of(task: Task[..., Any]) -> Keys | None:
    operation_key, unique_key = getattr(task, "operation_key", None), getattr(task, "unique_key", None)
    if operation_key is None and unique_key is None:
        return None
    return Keys(
        operation_key=operation_key,
        until=None if unique_key is None else UniqueUntil(getattr(task, "unique_until", UniqueUntil.FINISHED)),
        replacing=getattr(task, "on_duplicate", None) == OnDuplicate.REPLACE,
        window_seconds=getattr(task, "window_seconds", None),
    )


class Portion:
    """Jobs to be sent together, and their arguments apart: most have all else in common."""

    __slots__ = ("args", "characters", "jobs", "keys", "kwargs", "queues")

    def __init__(self, keys: Keys | None) -> None:
        self.keys = keys
        self.queues: set[str] = set()
        self.jobs: list[NewJob] = []
        self.args: list[str | None] = []
        self.kwargs: list[str | None] = []
        self.characters = 0

    def add(self, job: NewJob, call: Call, max_bytes: int) -> None:
        """Take in a job of a call."""
        args = kwargs = None
        if call.args or call.kwargs:
            args, kwargs = encode_arguments(call.args, call.kwargs, max_bytes=max_bytes)
            self.characters += len(args or "") + len(kwargs or "")
        self.jobs.append(job)
        self.args.append(args)
        self.kwargs.append(kwargs)

    def is_full(self) -> bool:
        """Say whether nothing is to be added."""
        return len(self.jobs) >= PORTION or self.characters >= PORTION_CHARACTERS


def _portions(calls: Iterable[Call]) -> Iterator[Portion]:
    """Yield jobs to be sent together. Only those are in memory, however many calls there are."""
    told: Told | None = None
    portion = Portion(None)
    for call in calls:
        if told is None or call.task is not told.task:
            refuse_unready(call.task)
            told = _read(call.task)
            max_bytes = conf.of(queue=told.job.queue, task=told.job.task).max_payload_bytes
        if portion.is_full() or portion.keys != told.keys:
            if portion.jobs:
                yield portion
            portion = Portion(told.keys)
        told.shape.check(call)
        portion.add(told.job, call, max_bytes)
        portion.queues.add(told.job.queue)
    if portion.jobs:
        yield portion


def _insert(alias: str, portion: Portion) -> list[int]:
    """Insert plain jobs with one statement, those with a key one by one."""
    keys, texts = portion.keys, (portion.args, portion.kwargs)
    if keys is None:
        return insert_many(alias, portion.jobs, args=texts[0], kwargs=texts[1])
    return [
        _enqueue_once(alias, job._replace(args=args, kwargs=kwargs), keys).id
        for job, args, kwargs in zip(portion.jobs, *texts, strict=True)
    ]


def _enqueue_once(alias: str, job: NewJob, keys: Keys) -> Inserted | Spent:
    if keys.window_seconds is not None and keys.until is UniqueUntil.WINDOW:
        return insert_in_window(alias, job, window_seconds=keys.window_seconds)
    if keys.until is not None:
        return insert_unique(alias, job, replacing=keys.replacing)
    return _spend(alias, job, str(keys.operation_key))


def _spend(alias: str, job: NewJob, key: str) -> Inserted | Spent:
    arguments = digest(job.args, job.kwargs)
    found = insert_once(alias, job, operation_key=key, digest=arguments)
    if isinstance(found, Spent) and found.digest != arguments:
        raise OperationKeyConflictError(job.task, key, found.id)
    return found


def _job_of(task: Task[..., Any]) -> NewJob:
    name = task.module_path
    settings = conf.of(queue=task.queue_name, task=name)
    tenant = getattr(task, "tenant", None)
    shard_key = getattr(task, "shard_key", None)
    resource = getattr(task, "resource", None)
    blocks_key = getattr(task, "key_order", KeyOrder.SKIP) == KeyOrder.STRICT and shard_key is not None
    unique_key = getattr(task, "unique_key", None)
    is_until_started = unique_key is not None and getattr(task, "unique_until", None) == UniqueUntil.STARTED
    return NewJob(
        queue=task.queue_name,
        task=name,
        args=None,
        kwargs=None,
        priority=int(task.priority),
        lane=Lane.PLAIN if tenant is None and shard_key is None and resource is None else Lane.LANED,
        max_attempts=getattr(task, "max_attempts", None) or settings.max_attempts,
        recovery=getattr(task, "recovery", Recovery.UNDECLARED),
        run_at=_instant(task.run_after),
        tenant=tenant,
        shard_key=shard_key,
        resource=resource,
        blocks_key=blocks_key or None,
        unique_key=unique_key,
        until_started=is_until_started or None,
        max_run_seconds=getattr(task, "max_run_seconds", None),
        on_dead=on_dead_of(task),
    )


def _with_arguments(job: NewJob, call: Call) -> NewJob:
    if not call.args and not call.kwargs:
        return job
    settings = conf.of(queue=job.queue, task=job.task)
    args, kwargs = encode_arguments(call.args, call.kwargs, max_bytes=settings.max_payload_bytes)
    return job._replace(args=args, kwargs=kwargs)


def _instant(run_after: datetime | None) -> datetime | None:
    """Return an aware time. Without USE_TZ naive ones mean the site's time zone; an array must not mix the two."""
    if run_after is None or timezone.is_aware(run_after):
        return run_after
    return timezone.make_aware(run_after, timezone.get_default_timezone())
