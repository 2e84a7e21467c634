"""Threads that run what is put before them, each run in clean surroundings."""

from __future__ import annotations

import contextvars
import logging
import queue
import threading
from collections.abc import Callable

from django.db import connections

from .. import execution
from ..holding import Held
from ..protocol.settling import Ending
from .surroundings import clean_surroundings

logger = logging.getLogger(__name__)


class Executor:
    """A fixed number of daemon threads: a thread cannot be killed, so the process must be able to leave it."""

    def __init__(
        self,
        threads: int,
        *,
        run: Callable[[Held], Ending | None] = execution.run,
        on_ending: Callable[[Ending], None],
        on_notice_given: Callable[[], None] = lambda: None,
    ) -> None:
        """`run` returns None for a lease that it has passed on: somebody else then tells the ending."""
        self.threads = threads
        self._run_lease = run
        self._on_ending = on_ending
        self._on_notice_given = on_notice_given
        self._waiting: queue.SimpleQueue[Held | Callable[[], None] | None] = queue.SimpleQueue()
        self._unfinished = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start the threads."""
        for number in range(self.threads):
            threading.Thread(target=self._serve, name=f"pgqueue-{number}", daemon=True).start()

    def stop(self) -> None:
        """Let the threads end, each with its database connections closed, once they have run what waits."""
        for _ in range(self.threads):
            self._waiting.put(None)

    def submit(self, work: Held | Callable[[], None]) -> None:
        """Queue a lease to run, or a notice to give, on the next free thread."""
        with self._lock:
            self._unfinished += 1
        self._waiting.put(work)

    def withdraw(self) -> list[Held]:
        """Take back every lease that no thread has begun; notices stay."""
        taken: list[Held] = []
        notices: list[Callable[[], None]] = []
        while True:
            try:
                work = self._waiting.get_nowait()
            except queue.Empty:
                break
            if isinstance(work, Held):
                taken.append(work)
            elif work is not None:
                notices.append(work)
        with self._lock:
            self._unfinished -= len(taken) + len(notices)
        for notice in notices:
            self.submit(notice)
        return taken

    def waiting(self) -> int:
        """Return about how many leases and notices no thread has begun."""
        return self._waiting.qsize()

    def is_idle(self, *, but: int = 0) -> bool:
        """Say whether nothing runs or waits, but on so many threads; when that is all of them, nothing ever will."""
        return self._unfinished <= but or but >= self.threads

    def _serve(self) -> None:
        surroundings = contextvars.copy_context()
        while (work := self._waiting.get()) is not None:
            # Language, time zone and whatever else a task sets in its context is gone with the copy.
            surroundings.copy().run(self._run, work)
        connections.close_all()

    def _run(self, work: Held | Callable[[], None]) -> None:
        """Run a lease or a notice. Whatever happens, the thread goes on and a lease gets its ending.

        The heartbeat would renew a lease without one for ever. What `execution.run` does not catch is an exception
        that was thrown into this thread from outside, or memory that ran out while it dealt with another.
        """
        ending: Ending | None = None
        try:
            with clean_surroundings():
                if isinstance(work, Held):
                    ending = self._run_lease(work)
                else:
                    work()
        except BaseException as error:
            logger.exception("thread.interrupted")
            if isinstance(work, Held) and ending is None:
                ending = execution.interrupted(work, error)
        with self._lock:
            self._unfinished -= 1
        if ending is not None:
            self._on_ending(ending)
        elif not isinstance(work, Held):
            self._on_notice_given()
