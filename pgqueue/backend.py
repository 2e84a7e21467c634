"""The Django Tasks backend, and the task types with the options of this queue."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any, ParamSpec, TypeVar

from django.apps import apps
from django.core import checks
from django.utils import timezone

from . import registry, signalling
from .bounds import INSTANT, LONGEST_SECONDS, NAME, is_instant, is_name
from .compat import (
    BaseTaskBackend,
    GenericTask,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    task_backends,
)
from .enqueueing import Call, enqueue, refuse_unready
from .exceptions import JobPurgedError
from .probes import ProbeContext, ProbedEffect
from .protocol.connecting import job_alias
from .protocol.inserting import Spent
from .protocol.reading import read_job
from .queue_names import refuse_other_queue
from .results import enqueued, stored
from .states import KeyOrder, OnDuplicate, Recovery, Settle, UniqueUntil

P = ParamSpec("P")
T = TypeVar("T")

LARGEST_ID = 2**63 - 1
LARGEST_INTEGER = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PGQueueTask(GenericTask[P, T]):
    """A Django Task with this queue's options; they all have defaults, so plain Tasks run too.

    Django's own decorator makes these where `TASKS` names this backend, and they go wherever `TASKS` says by then:
    a test may send them to Django's dummy. `pgqueue.task` makes an `OwnTask`.
    """

    func: Callable[..., T]
    priority: int = 0
    backend: str = "default"
    queue_name: str = "default"
    run_after: datetime | None = None
    max_attempts: int | None = None
    """Runs that may be charged before the job is dead; None is the setting's."""
    max_run_seconds: int | None = None
    """Longest run; past it the run is interrupted, and has failed. None is the setting's."""
    recovery: str = Recovery.UNDECLARED
    """What may be done when an effect is left unknown, or a worker lost: a word of `states.Recovery`."""
    call_deadline_seconds: float | None = None
    """How long after it began a call of an effect may still take effect; None is the setting's."""
    replay_safe_seconds: float | None = None
    """How long after its first call an `idempotent` task may repeat an effect; None is the setting's."""
    backoff_seconds: float | None = None
    """First delay after a failure, doubled each time; None is the setting's."""
    retry_on: tuple[type[BaseException], ...] = ()
    """Exceptions to try again after, whatever the default table says."""
    bury_on: tuple[type[BaseException], ...] = ()
    """Exceptions after which trying again is useless."""
    on_dead: Any = None
    """The task, or its name, that is enqueued with the job's id when the job becomes dead."""
    compensation: Any = None
    """The task, or its name, that undoes an effect which happened wrongly, enqueued when an operator says so. It is
    given `job_id`, `effect`, `operation_key` and `remote_reference`, as keywords."""
    tenant: str | None = None
    shard_key: str | None = None
    """Jobs of one queue and shard key run one at a time."""
    settle: str = Settle.TOGETHER
    """`each`: the completion is committed at once and alone; `together`: with those of others."""
    key_order: str = KeyOrder.SKIP
    """`strict`: while a job is unfinished, younger ones of its shard key wait; `skip`: only while it runs."""
    resource: str | None = None
    """Named resource that the job uses while it runs; operators limit how many do so at once."""
    unique_key: str | None = None
    """One job of the task and this key at a time; an enqueue that meets one gives that one back."""
    unique_until: str = UniqueUntil.FINISHED
    """How long a job keeps others of its unique key out: until it `finished`, until it `started`, or for a `window`."""
    on_duplicate: str = OnDuplicate.KEEP
    """`replace`: an enqueue that meets a waiting job gives it its own arguments and time; needs `started`."""
    window_seconds: float | None = None
    """Length of the `window`, from the enqueue of the job that opened it."""
    operation_key: str | None = None
    """Stable key of the business operation: the same key and arguments give the first job back."""

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | None = None,
        backend: str | None = None,
        max_attempts: int | None = None,
        max_run_seconds: int | None = None,
        tenant: str | None = None,
        shard_key: str | None = None,
        resource: str | None = None,
        unique_key: str | None = None,
        operation_key: str | None = None,
    ) -> PGQueueTask[P, T]:
        """Return a copy with other options; None keeps what is set."""
        given: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "run_after": run_after,
            "backend": backend,
            "max_attempts": max_attempts,
            "max_run_seconds": max_run_seconds,
            "tenant": tenant,
            "shard_key": shard_key,
            "resource": resource,
            "unique_key": unique_key,
            "operation_key": operation_key,
        }
        return replace(self, **{name: value for name, value in given.items() if value is not None})

    def probe(self, function: Callable[[ProbeContext, ProbedEffect], Any]) -> Callable[..., Any]:
        """Declare how to ask what became of an effect; a decorator, for a function or a coroutine function.

        It answers `Happened`, `DidNotHappen`, `StillGoing` or `CannotTell`.
        """
        if self.recovery != Recovery.PROBE:
            raise InvalidTask(f"{self.module_path} has a probe, and recovery={self.recovery!r}: declare it as 'probe'.")
        registry.register_probe(self.module_path, function)
        return function

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """Return this task with arguments, for `enqueue_many`."""
        return Call(self, args, kwargs)


class OwnTask(PGQueueTask[P, T]):
    """One that always goes to this queue."""

    __slots__ = ()

    def get_backend(self) -> BaseTaskBackend:
        """Return this queue's backend, also where `TASKS` names another one or none."""
        try:
            configured = task_backends[self.backend]
        except InvalidTaskBackend:
            return _own_backend
        return configured if isinstance(configured, PGQueueBackend) else _own_backend


class PGQueueBackend(BaseTaskBackend):
    """Django Tasks on `pgqueue`. Holds no connection and no state but what it knows: Django keeps one per thread."""

    _validated: Task[..., Any] | None = None
    """The latest task that was found good: most calls are of the same as the one before."""
    task_class = PGQueueTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Task[..., Any]) -> None:
        """Refuse a task that cannot run here; make a good one known to this process."""
        refuse_other_queue(task, self)
        super().validate_task(task)
        _refuse_bad_options(task)
        registry.register(task)

    def enqueue(self, task: Task[P, T], args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Insert a job in the caller's transaction; see `enqueueing.enqueue` for the errors."""
        if task is not self._validated:
            self.validate_task(task)
            self._validated = task
        refuse_unready(task)
        inserted = enqueue(Call(task, args, kwargs))
        if isinstance(inserted, Spent):
            return self._spent(task, inserted, args, kwargs)
        result = enqueued(task, inserted.id, inserted.created_at, args, kwargs)
        signalling.send_enqueued(type(self), result)
        return result

    def _spent(self, task: Task[P, T], spent: Spent, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TaskResult:
        """Return the first job of the operation key; a pruned one as it was enqueued."""
        try:
            return self.get_result(str(spent.id))
        except TaskResultDoesNotExist:
            return enqueued(task, spent.id, spent.created_at, args, kwargs)

    def get_result(self, result_id: str) -> TaskResult:
        """Return a job as a TaskResult.

        Raise `TaskResultDoesNotExist` for a missing or bad id, and a purged job. Raise `UnknownTaskError` for a job
        that exists and whose task this process does not know.
        """
        id = _job_id(result_id)
        found = None if id is None else read_job(job_alias(), id)
        if found is None:
            raise TaskResultDoesNotExist(result_id)
        job, attempts = found
        if job.is_purged:
            purged = JobPurgedError(job.id)
            raise TaskResultDoesNotExist(str(purged)) from purged
        return stored(registry.find_or_discover(job.task), job, attempts)

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Check that the app is installed where `TASKS` names its backend; the app's own checks see to the rest."""
        if apps.is_installed("pgqueue"):
            return []
        return [
            checks.Error(
                f"The TASKS alias {self.alias!r} uses pgqueue, which is not in INSTALLED_APPS.",
                hint="Add 'pgqueue' to INSTALLED_APPS and run migrate.",
                id="pgqueue.E001",
            )
        ]


_own_backend = PGQueueBackend("default", {"QUEUES": []})


def _job_id(result_id: str) -> int | None:
    """Return the id that exactly this text stands for: `str(id)` of a job, and nothing that int() also takes."""
    if not (isinstance(result_id, str) and re.fullmatch(r"[1-9][0-9]{0,18}", result_id)):
        return None
    id = int(result_id)
    return id if id <= LARGEST_ID else None


def _refuse_bad_options(task: Task[..., Any]) -> None:
    for name, (is_good, expected) in _RULES.items():
        value = getattr(task, name, None)
        if value is not None and not is_good(value):
            raise InvalidTask(f"{name} must be {expected}, not {value!r}.")
    _refuse_options_that_do_not_fit(task)
    _refuse_unfit_recovery(task)


def _refuse_options_that_do_not_fit(task: Task[..., Any]) -> None:
    until = getattr(task, "unique_until", UniqueUntil.FINISHED)
    if getattr(task, "on_duplicate", None) == OnDuplicate.REPLACE and until != UniqueUntil.STARTED:
        raise InvalidTask("on_duplicate='replace' needs unique_until='started': a job that began keeps its arguments.")
    if (until == UniqueUntil.WINDOW) != (getattr(task, "window_seconds", None) is not None):
        raise InvalidTask("unique_until='window' and window_seconds need each other.")
    if getattr(task, "unique_key", None) is not None and getattr(task, "operation_key", None) is not None:
        raise InvalidTask("A job has an operation_key, spent for ever, or a unique_key, for a time, and not both.")


def _refuse_unfit_recovery(task: Task[..., Any]) -> None:
    recovery = getattr(task, "recovery", None)
    if recovery in (Recovery.MANUAL, Recovery.PROBE) and not task.takes_context:
        raise InvalidTask(f"recovery={recovery!r} decides by context.effect(...): add takes_context=True.")
    if recovery == Recovery.TRANSACTIONAL and getattr(task, "compensation", None) is not None:
        raise InvalidTask("recovery='transactional' has no effects elsewhere: there is nothing to compensate.")
    if recovery == Recovery.TRANSACTIONAL and inspect.iscoroutinefunction(task.func):
        raise InvalidTask("recovery='transactional' needs a plain function: a coroutine has no transaction around it.")


def _is_count(value: Any, *, largest: int = 32_000) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= largest


def _is_duration(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LONGEST_SECONDS


def _can_be_stored(run_after: Any) -> bool:
    """A naive time is that of the site's time zone, as Django has it."""
    if not isinstance(run_after, datetime):
        return False
    is_naive = timezone.is_naive(run_after)
    return is_instant(timezone.make_aware(run_after, timezone.get_default_timezone()) if is_naive else run_after)


def _are_exceptions(value: Any) -> bool:
    return isinstance(value, tuple) and all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in value
    )


_NAME = (is_name, NAME)
_DURATION = (_is_duration, f"a number of seconds above 0, and at most {LONGEST_SECONDS:,} (a hundred years)")
_TASK = (lambda value: is_name(getattr(value, "module_path", value)), "a task or the path of its function")
_EXCEPTIONS = (_are_exceptions, "a tuple of exception classes")
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "queue_name": _NAME,
    "run_after": (_can_be_stored, INSTANT),
    "tenant": _NAME,
    "shard_key": _NAME,
    "resource": _NAME,
    "unique_key": _NAME,
    "unique_until": (lambda value: value in tuple(UniqueUntil), f"one of {', '.join(UniqueUntil)}"),
    "on_duplicate": (lambda value: value in tuple(OnDuplicate), f"one of {', '.join(OnDuplicate)}"),
    "window_seconds": _DURATION,
    "settle": (lambda value: value in tuple(Settle), f"one of {', '.join(Settle)}"),
    "key_order": (lambda value: value in tuple(KeyOrder), f"one of {', '.join(KeyOrder)}"),
    "operation_key": _NAME,
    "recovery": (lambda value: value in list(Recovery), f"one of {', '.join(Recovery)}"),
    "on_dead": _TASK,
    "compensation": _TASK,
    "max_attempts": (_is_count, "a whole number between 1 and 32000"),
    "max_run_seconds": (partial(_is_count, largest=LARGEST_INTEGER), "a whole number of seconds above 0"),
    "call_deadline_seconds": _DURATION,
    "replay_safe_seconds": _DURATION,
    "backoff_seconds": _DURATION,
    "retry_on": _EXCEPTIONS,
    "bury_on": _EXCEPTIONS,
}
