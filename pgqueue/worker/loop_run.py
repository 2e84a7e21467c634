"""One run on the event loop, and what it starts there: tasks, and calls on threads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, NoReturn, TypeVar

from ..execution import Prepared
from ..holding import Held
from .copies import call_here, end_copy
from .surroundings import clean_surroundings
from .watch import Run

T = TypeVar("T")


class LoopRun(Run):
    """A run on the loop: its task, and whatever that started and did not wait for."""

    hears_requests = True

    def __init__(self, held: Held, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(held)
        self.tasks: set[asyncio.Task[Any]] = set()
        self.calls: set[Future[Any]] = set()
        self.body: asyncio.Task[Callable[[], Any]] | None = None
        self._loop = loop

    def interrupt(self) -> None:
        """Cancel the task."""
        self._loop.call_soon_threadsafe(self._cancel)

    def start(self, prepared: Prepared) -> None:
        """Start the task, in a context that says whose everything is that it starts."""
        context = copy_context()
        context.run(_current.set, self)
        self.body = self._loop.create_task(_outcome(prepared), name=f"job-{self.held.lease.id}", context=context)

    async def last(self) -> None:
        """Wait for the end of all of it.

        What the task leaves behind is cancelled, as `asyncio.run` does: a shield holds no longer than the task.
        Calls on threads cannot be cancelled once they have begun.
        """
        assert self.body is not None
        await asyncio.wait({self.body})
        while self.tasks or self.calls:
            tasks = list(self.tasks)
            for task in tasks:
                task.cancel()
            # Copied in one step: other threads take out what has ended.
            calls = [asyncio.wrap_future(call) for call in list(self.calls)]
            if tasks or calls:
                await asyncio.wait([*tasks, *calls])
            for call in calls:
                call.cancelled() or call.exception()  # Seen: asyncio would complain that nobody has.

    def result(self) -> Any:
        """Return what the task returned, or raise what it raised."""
        assert self.body is not None
        return self.body.result()()

    def _cancel(self) -> None:
        if self.body is not None:
            self.body.cancel()


_current: ContextVar[LoopRun | None] = ContextVar("pgqueue_run", default=None)


class LoopThreads(ThreadPoolExecutor):
    """The loop's own threads, where calls from all jobs meet: each in clean surroundings, and known to its run.

    What a call brings no context for gets one of its own.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future = super().submit(Context().run, _call_cleanly, partial(fn, *args, **kwargs))
        run = _current.get()
        if run is not None:
            run.calls.add(future)
            future.add_done_callback(run.calls.discard)
        return future


def _call_cleanly(call: Callable[[], T]) -> T:
    with clean_surroundings():
        return call_here(call)


def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Make a task, known to the run that asked for it."""
    task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **options)
    run = _current.get()
    if run is not None:
        run.tasks.add(task)
        task.add_done_callback(run.tasks.discard)
    return task


async def _outcome(prepared: Prepared) -> Callable[[], Any]:
    """Call the task and return what to call for its value, or its exception: SystemExit would end the loop."""
    pid = os.getpid()
    try:
        value = await prepared.task.acall(*prepared.args, **prepared.kwargs)
    except BaseException as error:
        return partial(_raise, error)
    finally:
        end_copy(pid)
    return lambda: value


def _raise(error: BaseException) -> NoReturn:
    raise error
