"""One event loop on a thread of its own, for the jobs whose tasks are coroutine functions."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, NoReturn, TypeVar

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from .. import conf, execution
from ..execution import Prepared
from ..foreign import told
from ..holding import Held
from ..logs import get_logger
from ..protocol.settling import Ending
from .copies import call_here, end_copy
from .executor import Executor
from .job_threads import JobThread
from .surroundings import clean_surroundings
from .watch import Run, Watch

logger = get_logger(__name__)

BLOCKED_SECONDS = 1.0
"""Time without an answer from the loop after which somebody is told to have blocked it."""

WRITERS = 4
"""Threads, and so connections at most, that write completions which wait for no others."""

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


class EventLoop:
    """Runs everything that is submitted at once: how much that is, the claims decide.

    What surrounds a task may use the database, and is done beside the loop: what comes before it on the desk, a
    thread, and the completions that are to be written at once and alone by the writers.
    """

    def __init__(self, *, watch: Watch, on_ending: Callable[[Ending], None]) -> None:
        self._watch = watch
        self._on_ending = on_ending
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(_make_task)
        self._threads = _Threads(thread_name_prefix="pgqueue-loop")
        self._loop.set_default_executor(self._threads)
        self._job_threads = ThreadPoolExecutor(conf.current().async_threads, thread_name_prefix="pgqueue-async-job")
        self._desk = Executor(1, run=self._begin, on_ending=on_ending)
        self._writers = Executor(WRITERS, on_ending=on_ending)
        self._running: set[Held] = set()
        self._supervisors: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._asked_at: float | None = None
        self._told_of_block = False
        watch.at_each_tick(self._probe)

    def start(self) -> None:
        """Start the loop."""
        threading.Thread(target=self._serve, name="pgqueue-loop", daemon=True).start()
        self._desk.start()
        self._writers.start()

    def stop(self) -> None:
        """End the loop; nothing runs any more."""
        self._stopping = True
        self._desk.stop()
        self._writers.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)

    def submit(self, leases: Iterable[Held]) -> None:
        """Run leases, beside all others."""
        self._desk.submit(leases)

    def withdraw(self) -> list[Held]:
        """Take back every lease that has not begun."""
        return self._desk.withdraw()

    def waiting(self) -> int:
        """Return about how many leases have not begun."""
        return self._desk.waiting()

    def is_idle(self, *, but: int = 0) -> bool:
        """Say whether nothing runs or waits but so many runs, which are stuck; on a blocked loop nothing ever will."""
        is_over = (self._desk.is_idle() and len(self._running) <= but) or (but > 0 and self.is_blocked())
        return is_over and self._writers.is_idle()

    def running(self) -> int:
        """Return how many runs have begun and not ended; those whose completion is being written have."""
        return len(self._running)

    def is_blocked(self) -> bool:
        """Say whether the loop has not answered for a while: a task keeps it to itself."""
        return self._told_of_block

    def _begin(self, held: Held) -> Ending | None:
        prepared = execution.prepare(held)
        if isinstance(prepared, Ending):
            return prepared
        self._running.add(held)
        # A context of its own: language, time zone and whatever else a task sets there is gone with it.
        self._loop.call_soon_threadsafe(self._start, prepared, context=Context())
        return None

    def _start(self, prepared: Prepared) -> None:
        supervisor = self._loop.create_task(self._supervise(prepared))
        self._supervisors.add(supervisor)
        supervisor.add_done_callback(self._supervisors.discard)

    async def _supervise(self, prepared: Prepared) -> None:
        """Run a job to its ending, which is told once nothing of it goes on."""
        held = prepared.held
        interruption: str | None = None
        try:
            ending = await self._run(prepared)
        except BaseException as error:
            ending, interruption = execution.interrupted(held, error), told(error)
        held.end()
        self._running.discard(held)
        if execution.is_settled_at_once(prepared, ending):
            self._writers.submit([partial(self._settle, held, ending)])
        else:
            self._on_ending(ending)
        if interruption is not None:
            logger.error("run.interrupted job=%d %s", ending.id, interruption)

    def _settle(self, held: Held, ending: Ending) -> None:
        """Write a completion and tell it from here: the loop may be blocked by now."""
        try:
            ending = execution.settle_at_once(held, ending)
        finally:
            self._on_ending(ending)

    async def _run(self, prepared: Prepared) -> Ending:
        run = LoopRun(prepared.held, self._loop)
        thread = JobThread(self._job_threads)
        async with ThreadSensitiveContext() as context:
            SyncToAsync.context_to_thread_executor[context] = thread
            run.start(prepared)
            with self._watch.watching(run):
                try:
                    await run.last()
                finally:
                    await thread.leave()
            # The thread is not the context's to end.
            del SyncToAsync.context_to_thread_executor[context]
        return execution.conclude(prepared, run.result)

    def _probe(self) -> None:
        """See whether the loop answers; called by the watch, on its thread, while something runs."""
        if self._asked_at is None:
            if self._running:
                self._asked_at = time.monotonic()
                self._loop.call_soon_threadsafe(self._answer)
            return
        seconds = time.monotonic() - self._asked_at
        if seconds >= BLOCKED_SECONDS and not self._told_of_block:
            self._told_of_block = True
            logger.warning("loop.blocked seconds=%.1f by=%s", seconds, self._name_of_current())

    def _answer(self) -> None:
        if self._told_of_block and self._asked_at is not None:
            logger.warning("loop.free seconds=%.1f", time.monotonic() - self._asked_at)
        self._told_of_block = False
        self._asked_at = None

    def _name_of_current(self) -> str:
        """Return the name of the task that the loop is in: `job-<id>`, or what a task of its own is called."""
        current = asyncio.current_task(self._loop)
        return "unknown" if current is None else current.get_name()

    def _serve(self) -> None:
        """Keep the loop running: a task of the author's may stop it, or break it off with SystemExit."""
        asyncio.set_event_loop(self._loop)
        while not self._stopping:
            try:
                self._loop.run_forever()
            except BaseException as error:
                logger.error("loop.interrupted %s", told(error))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._threads.shutdown(wait=False)
        self._job_threads.shutdown(wait=False)
        asyncio.set_event_loop(None)
        self._loop.close()


class _Threads(ThreadPoolExecutor):
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


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
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
