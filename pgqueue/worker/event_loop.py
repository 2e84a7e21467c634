"""One event loop on a thread of its own, for the jobs whose tasks are coroutine functions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from functools import partial

from asgiref.sync import SyncToAsync, ThreadSensitiveContext

from .. import conf, execution
from ..execution import Prepared
from ..foreign import class_name, told
from ..holding import Held
from ..logs import get_logger
from ..protocol.settling import Ending, EndingKind
from .executor import Executor
from .job_threads import JobThread
from .loop_run import LoopRun, LoopThreads, make_task
from .vital_signs import gone
from .watch import Watch

logger = get_logger(__name__)

BLOCKED_SECONDS = 1.0
"""Time without an answer from the loop after which somebody is told to have blocked it."""

TICK_SECONDS = 1.0
"""How often the loop wakes by itself: to find that its descriptors were closed, and to go on without those that wake
it."""

WRITERS = 4
"""Threads, and so connections at most, that write completions which wait for no others."""


class EventLoop:
    """Runs everything that is submitted at once: how much that is, the claims decide.

    What surrounds a task may use the database, and is done beside the loop: what comes before it on the desk, a
    thread, and the completions that are to be written at once and alone by the writers.
    """

    def __init__(
        self, *, watch: Watch, on_ending: Callable[[Ending], None], on_death: Callable[[], None] = lambda: None
    ) -> None:
        """`on_death` is called when the loop cannot go on: what runs on it will never end."""
        self.is_dead = False
        self._on_death = on_death
        self._watch = watch
        self._on_ending = on_ending
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(make_task)
        self._threads = LoopThreads(thread_name_prefix="pgqueue-loop")
        self._loop.set_default_executor(self._threads)
        self._job_threads = ThreadPoolExecutor(conf.current().async_threads, thread_name_prefix="pgqueue-async-job")
        self._desk = Executor(1, run=self._begin, on_ending=on_ending)
        self._writers = Executor(WRITERS, on_ending=on_ending)
        self._thread = threading.Thread(target=self._serve, name="pgqueue-loop", daemon=True)
        self._number: int | None = None
        self._running: set[Held] = set()
        self._supervisors: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._asked_at: float | None = None
        self._told_of_block = False
        watch.at_each_tick(self._probe)

    def start(self) -> None:
        """Start the loop."""
        self._thread.start()
        self._desk.start()
        self._writers.start()

    def stop(self) -> None:
        """End the loop; nothing runs any more."""
        self._stopping = True
        self._desk.stop()
        self._writers.stop()
        if not self.is_dead:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def replace_gone(self) -> bool:
        """Replace threads beside the loop that are gone, and notice when the loop's own is. Return whether any was."""
        if self._number is not None and not self.is_dead and gone({self._thread: self._number}):
            self._die("thread_gone")
        desk, writers = self._desk.replace_gone(), self._writers.replace_gone()
        return desk or writers

    def abandoned(self) -> list[Held]:
        """Return what will never end, because the loop has died."""
        return list(self._running) if self.is_dead else []

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
        is_blocked = but > 0 and self.is_blocked()
        is_over = (self._desk.is_idle() and (self.is_dead or len(self._running) <= but)) or is_blocked
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
        if self.is_dead:
            return Ending(EndingKind.RELEASE, held.lease.id, held.lease.fence)
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
        if execution.is_settled_at_once(prepared, ending):
            self._writers.submit([partial(self._settle, held, ending)])
        else:
            self._on_ending(ending)
        # Only now: who finds nothing running finds every ending told.
        self._running.discard(held)
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
        """Keep the loop running: a task of the author's may stop it, or break it off with SystemExit.

        Nothing else that a task raises comes out of a loop: then it is the loop that cannot go on.
        """
        self._number = threading.get_native_id()
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._tick)
        while not self._stopping:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                logger.error("loop.interrupted %s", told(error))
            except BaseException as error:
                # Not closed: its descriptors may be somebody else's by now.
                self._die(class_name(error))
                return
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._threads.shutdown(wait=False)
        self._job_threads.shutdown(wait=False)
        asyncio.set_event_loop(None)
        self._loop.close()

    def _tick(self) -> None:
        self._loop.call_later(TICK_SECONDS, self._tick)

    def _die(self, error: str) -> None:
        self.is_dead = True
        logger.critical("loop.died running=%d error=%s", len(self._running), error)
        self._on_death()
