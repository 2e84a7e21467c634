"""The two ways to run a job at once with others, and which of them runs which task."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial

from .. import execution, registry
from ..holding import Held, Holdings
from ..logs import get_logger
from ..protocol.claiming import Claimant, Lease
from ..protocol.settling import Ending
from .event_loop import EventLoop
from .executor import Executor, Work
from .loop_run import LoopRun
from .pace import Pool
from .vital_signs import gone
from .watch import Run, Watch

logger = get_logger(__name__)

LOOK_SECONDS = 1.0
"""Time between two looks whether all threads are there."""


class Pools:
    """Threads for functions, and an event loop for coroutine functions where such are registered."""

    def __init__(
        self,
        tasks: Iterable[str],
        *,
        slots: Mapping[Pool, int],
        watch: Watch,
        on_ending: Callable[[Ending], None],
        on_rest: Callable[[], None],
        on_loop_death: Callable[[], None],
    ) -> None:
        self._pool_of = {name: Pool.LOOP if registry.is_async(name) else Pool.THREADS for name in tasks}
        used = set(self._pool_of.values()) or {Pool.THREADS}
        self.slots = {pool: count for pool, count in slots.items() if pool in used}
        self._watch = watch
        self._look_at = 0.0
        self._services: list[threading.Thread] = [watch]
        self._missing: set[threading.Thread] = set()
        self._threads = Executor(
            slots[Pool.THREADS],
            run=partial(execution.run, call=watch.call),
            on_ending=on_ending,
            on_rest=on_rest,
        )
        self._loop = EventLoop(watch=watch, on_ending=on_ending, on_death=on_loop_death) if Pool.LOOP in used else None

    def count_on(self, service: threading.Thread) -> None:
        """Look after this thread too, which cannot be replaced."""
        self._services.append(service)

    def look_for_gone(self) -> bool:
        """Return whether any thread has gone since the last look. Those that run jobs are replaced.

        Asked again within a second, it does not look.
        """
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + LOOK_SECONDS
        found = [self._threads.replace_gone(), self._loop is not None and self._loop.replace_gone()]
        numbers = {thread: thread.native_id for thread in self._services if thread.native_id is not None}
        missing = gone(numbers) - self._missing
        for thread in missing:
            logger.error("thread.gone name=%s job=None", thread.name)
        self._missing |= missing
        return any(found) or bool(missing)

    def start(self) -> None:
        """Start all threads."""
        self._watch.start()
        self._threads.start()
        if self._loop is not None:
            self._loop.start()

    def stop(self) -> None:
        """Let all threads end once they have run what waits."""
        self._watch.stop()
        self._threads.stop()
        if self._loop is not None:
            self._loop.stop()

    def tasks(self, pool: Pool) -> tuple[str, ...]:
        """Return the names of the tasks that a pool runs."""
        return tuple(name for name, runs_it in self._pool_of.items() if runs_it is pool)

    def claimants(self, claimant: Claimant) -> dict[Pool | None, Claimant]:
        """Return for each pool who claims what it runs, and under None who claims for all."""
        return {None: claimant, **{pool: replace(claimant, tasks=self.tasks(pool)) for pool in self.slots}}

    def pool(self, lease: Lease) -> Pool:
        """Return the pool that runs a lease."""
        return self._pool_of.get(lease.task, Pool.THREADS)

    def held(self, holdings: Holdings, *, but: Collection[int] = ()) -> dict[Pool, int]:
        """Return how many leases are held for each pool, leaving out those of the job ids in `but`."""
        if len(self.slots) == 1:
            return {pool: max(0, len(holdings) - len(but)) for pool in self.slots}
        counted = dict.fromkeys(self.slots, 0)
        for lease in holdings.leases():
            if lease.id not in but:
                counted[self.pool(lease)] += 1
        return counted

    def submit(self, works: Iterable[Work], *, crew: int | None = None) -> None:
        """Run leases, and give notices, as soon as there is room; wake at most `crew` threads for them."""
        if self._loop is None:
            self._threads.submit(works, crew=crew)
            return
        for_loop: list[Held] = []
        for_threads: list[Work] = []
        for work in works:
            if isinstance(work, Held) and self.pool(work.lease) is Pool.LOOP:
                for_loop.append(work)
            else:
                for_threads.append(work)
        self._loop.submit(for_loop)
        self._threads.submit(for_threads, crew=crew)

    def spread(self) -> None:
        """Wake every thread that could run what waits."""
        self._threads.spread()

    def sleep_over_work(self) -> bool:
        """Say whether threads sleep though something waits: for short jobs few are woken."""
        return self._threads.sleep_over_work()

    def runs_low(self) -> bool:
        """Say whether threads are about to have nothing more to run."""
        return self._threads.runs_low()

    def withdraw(self) -> list[Held]:
        """Take back every lease that has not begun."""
        return [*self._threads.withdraw(), *(self._loop.withdraw() if self._loop is not None else ())]

    def waiting(self) -> int:
        """Return about how many leases and notices have not begun."""
        return self._threads.waiting() + (self._loop.waiting() if self._loop is not None else 0)

    def stuck(self) -> list[Run]:
        """Return the runs that nothing can stop."""
        return self._watch.stuck()

    def abandoned(self) -> list[Held]:
        """Return what runs on an event loop that has died: it will never end, and some of it may live in threads."""
        return [] if self._loop is None else self._loop.abandoned()

    def is_idle(self) -> bool:
        """Say whether nothing runs or waits that will ever end."""
        stuck = self._count_stuck()
        on_loop = self._loop is None or self._loop.is_idle(but=stuck[Pool.LOOP])
        return on_loop and self._threads.is_idle(but=stuck[Pool.THREADS])

    def hopeless(self, holdings: Holdings) -> int:
        """Return how many leases are held whose runs never end: those stuck, and all on a blocked or dead loop."""
        stuck = self._count_stuck()
        if self._loop is not None and (self._loop.is_dead or (stuck[Pool.LOOP] and self._loop.is_blocked())):
            stuck[Pool.LOOP] = min(self._loop.running(), self.held(holdings)[Pool.LOOP])
        return sum(stuck.values())

    def _count_stuck(self) -> dict[Pool, int]:
        stuck = self.stuck()
        on_loop = sum(isinstance(run, LoopRun) for run in stuck)
        return {Pool.LOOP: on_loop, Pool.THREADS: len(stuck) - on_loop}
