"""The decorator `pgqueue.task`, typed so that an editor knows what a task takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from .backend import OwnTask, PGQueueTask

P = ParamSpec("P")
T = TypeVar("T")


class Options(TypedDict, total=False):
    """What `task` takes beside `takes_context`: the fields of `PGQueueTask`."""

    priority: int
    backend: str
    queue_name: str
    max_attempts: int | None
    max_run_seconds: int | None
    recovery: str
    call_deadline_seconds: float | None
    replay_safe_seconds: float | None
    on_dead: Any
    compensation: Any
    backoff_seconds: float | None
    retry_on: tuple[type[BaseException], ...]
    bury_on: tuple[type[BaseException], ...]
    tenant: str | None
    shard_key: str | None
    settle: str
    key_order: str
    resource: str | None
    unique_key: str | None
    unique_until: str
    on_duplicate: str
    window_seconds: float | None
    operation_key: str | None


class Declare(Protocol):
    """Makes a task of a function; the result of a coroutine function is what it returns when awaited."""

    @overload
    def __call__(self, func: Callable[P, Coroutine[Any, Any, T]], /) -> PGQueueTask[P, T]: ...
    @overload
    def __call__(self, func: Callable[P, T], /) -> PGQueueTask[P, T]: ...


class DeclareWithContext(Protocol):
    """The same for a function whose first argument, the context, is none of its caller's."""

    @overload
    def __call__(self, func: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], /) -> PGQueueTask[P, T]: ...
    @overload
    def __call__(self, func: Callable[Concatenate[Any, P], T], /) -> PGQueueTask[P, T]: ...


@overload
def task(function: Callable[P, Coroutine[Any, Any, T]], /) -> PGQueueTask[P, T]: ...
@overload
def task(function: Callable[P, T], /) -> PGQueueTask[P, T]: ...
@overload
def task(*, takes_context: Literal[True], **options: Unpack[Options]) -> DeclareWithContext: ...
@overload
def task(*, takes_context: Literal[False] = False, **options: Unpack[Options]) -> Declare: ...


def task(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Declare a task that always runs on this queue, whatever `TASKS` says.

    Options are the fields of `PGQueueTask`. Raise `InvalidTask` for a function or an option that cannot work.
    """

    def declare(func: Callable[..., Any]) -> PGQueueTask[..., Any]:
        return OwnTask(func=func, **options)

    return declare if function is None else declare(function)
