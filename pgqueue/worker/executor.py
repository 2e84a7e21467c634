"""Threads that run what is put before them, each run in clean surroundings."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable

from django.db import connections

from .. import execution
from ..exceptions import RunGoneError
from ..foreign import told
from ..holding import Held
from ..logs import get_logger
from ..protocol.settling import Ending
from .surroundings import begin_cleanly, clean_up
from .vital_signs import gone

logger = get_logger(__name__)

Work = Held | Callable[[], None]


class _Seat:
    """The place of one thread: what it runs, and whether it counts as awake."""

    __slots__ = ("is_awake", "name", "number", "work")

    def __init__(self, name: str) -> None:
        self.name = name
        self.number: int | None = None
        self.is_awake = False
        self.work: Work | None = None


class Executor:
    """A fixed number of daemon threads: a thread cannot be killed, so the process must be able to leave it.

    What waits stands in one deque, from which a thread that is awake takes one after the other, and nobody waits for
    anybody: a lock or a wake-up for each job would cost more than a short job. Threads are woken once for all that
    was put there together.
    """

    def __init__(
        self,
        threads: int,
        *,
        run: Callable[[Held], Ending | None] = execution.run,
        on_ending: Callable[[Ending], None],
        on_rest: Callable[[], None] = lambda: None,
    ) -> None:
        """`run` returns None for a lease that it has passed on: somebody else then tells the ending.

        `on_rest` is called when a thread finds nothing more to do, or little: half of what was put there last.
        """
        self.threads = threads
        self._run_lease = run
        self._on_ending = on_ending
        self._on_rest = on_rest
        self._waiting: deque[Work] = deque()
        self._low = 0
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._sleeping = threads
        self._lock = threading.Lock()
        self._seats: dict[threading.Thread, _Seat] = {}

    def start(self) -> None:
        """Start the threads."""
        for number in range(self.threads):
            self._take(_Seat(f"pgqueue-{number}"))

    def replace_gone(self) -> bool:
        """Put new threads in the place of those that are gone, and tell endings for what they ran.

        Return whether there were any. What such a thread held, an open transaction or a lock, only the end of the
        process gives back.
        """
        numbers = {thread: seat.number for thread, seat in self._seats.items() if seat.number is not None}
        missing = gone(numbers)
        for thread in missing:
            seat = self._seats.pop(thread)
            work, seat.work, seat.number = seat.work, None, None
            id = work.lease.id if isinstance(work, Held) else None
            logger.error("thread.gone name=%s job=%s", seat.name, id)
            if isinstance(work, Held) and work.ended_at is None:
                work.end()
                self._on_ending(execution.interrupted(work, RunGoneError(work.lease.id)))
            self._take(seat)
        return bool(missing)

    def _take(self, seat: _Seat) -> None:
        thread = threading.Thread(target=self._serve, args=[seat], name=seat.name, daemon=True)
        self._seats[thread] = seat
        thread.start()

    def stop(self) -> None:
        """Let the threads end, each with its database connections closed, once they have run what waits."""
        for _ in range(self.threads):
            self._tokens.put(False)

    def submit(self, works: Iterable[Work], *, crew: int | None = None) -> None:
        """Queue leases to run and notices to give. At most `crew` threads are woken for them; None is all."""
        self._waiting.extend(works)
        self._low = len(self._waiting) // 2
        self.spread(crew=crew)

    def spread(self, *, crew: int | None = None) -> None:
        """Wake threads for what waits, until so many are awake."""
        with self._lock:
            awake = self.threads - self._sleeping
            count = min(self._sleeping, len(self._waiting), (self.threads if crew is None else crew) - awake)
            self._sleeping -= max(0, count)
        for _ in range(count):
            self._tokens.put(True)

    def withdraw(self) -> list[Held]:
        """Take back every lease that no thread has begun; notices stay."""
        taken: list[Held] = []
        notices: list[Work] = []
        while self._waiting:
            try:
                work = self._waiting.popleft()
            except IndexError:
                break
            if isinstance(work, Held):
                taken.append(work)
            else:
                notices.append(work)
        self.submit(notices)
        return taken

    def waiting(self) -> int:
        """Return how many leases and notices no thread has begun."""
        return len(self._waiting)

    def sleep_over_work(self) -> bool:
        """Say whether threads sleep though something waits."""
        return self._sleeping > 0 and len(self._waiting) > 0

    def runs_low(self) -> bool:
        """Say whether half of what was put there last has been taken."""
        return len(self._waiting) <= self._low

    def is_idle(self, *, but: int = 0) -> bool:
        """Say whether nothing runs or waits, but on so many threads; when that is all of them, nothing ever will."""
        return (not self._waiting and self.threads - self._sleeping <= but) or but >= self.threads

    def _serve(self, seat: _Seat) -> None:
        seat.number = threading.get_native_id()
        while seat.is_awake or self._tokens.get():
            seat.is_awake = True
            begin_cleanly()
            self._work(seat)
        connections.close_all()

    def _work(self, seat: _Seat) -> None:
        """Run what waits until nothing is left, then count as sleeping."""
        while True:
            try:
                work = self._waiting.popleft()
            except IndexError:
                with self._lock:
                    if self._waiting:
                        continue
                    self._sleeping += 1
                    seat.is_awake = False
                self._on_rest()
                return
            if len(self._waiting) == self._low:
                self._on_rest()
            # Language, time zone and whatever else a task sets is gone with its context. A copy of the thread's would
            # share objects in it: a tracker that patches threads keeps its tags in one.
            seat.work = work
            contextvars.Context().run(self._run, work)
            seat.work = None

    def _run(self, work: Work) -> None:
        """Run a lease or a notice. Whatever happens, the thread goes on and a lease gets its ending.

        The heartbeat would renew a lease without one for ever. What `execution.run` does not catch is an exception
        that was thrown into this thread from outside, or memory that ran out while it dealt with another.
        """
        ending: Ending | None = None
        interruption: str | None = None
        try:
            try:
                if isinstance(work, Held):
                    ending = self._run_lease(work)
                else:
                    work()
            finally:
                clean_up()
        except BaseException as error:
            interruption = told(error)
            if isinstance(work, Held) and ending is None:
                ending = execution.interrupted(work, error)
        if ending is not None and isinstance(work, Held):
            work.end()
            self._on_ending(ending)
        if interruption is not None:
            logger.error("thread.interrupted %s", interruption)
