"""Runs under watch: told when they pass their limit, and known when they go on all the same."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from ..exceptions import JobTimeoutError
from ..execution import Prepared
from ..foreign import told
from ..holding import Held
from ..logs import get_logger
from .copies import call_here

logger = get_logger(__name__)

TICK_SECONDS = 0.1
"""How late a limit or a request may be noticed. Nothing ticks while nothing is watched."""


DEEPEST = 4
"""Lines of code told of a run that has taken too long."""


class Run:
    """One run that is watched, from the call of its task until everything that the call began is over."""

    hears_requests = False
    """Whether a request to stop interrupts it; others must look."""

    def __init__(self, held: Held) -> None:
        self.held = held
        self.began_at = time.monotonic()
        self.limit_seconds = held.limit_seconds()
        self.was_told = False

    def interrupt(self) -> None:
        """Ask it to end now, from another thread. It may refuse."""
        raise NotImplementedError

    def where(self) -> str:
        """Return where in the code it is, if that can be seen."""
        return "unknown"


class ThreadRun(Run):
    """A call on a thread, interrupted by an exception that the interpreter raises in it at its next step.

    A call that waits inside C code, as `time.sleep` does, gets it when that returns.
    """

    def __init__(self, held: Held) -> None:
        super().__init__(held)
        self._thread_id = threading.get_ident()
        self._lock = threading.Lock()
        self._is_inside = False
        self._was_sent = False

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function on this thread, so that an interruption hits nothing but this call.

        There is one interruption at most. If it arrives while the call is being left, it comes out of here, and the
        second leaving is for that. A later one is taken back.
        """
        try:
            try:
                self._is_inside = True
                return function()
            finally:
                self._leave()
        except JobTimeoutError:
            self._leave()
            raise

    def interrupt(self) -> None:
        """Raise `JobTimeoutError` in the thread, if it is still inside the call."""
        with self._lock:
            if self._is_inside and not _interruptions_hang():
                self._was_sent = True
                _raise_in_thread(self._thread_id)

    def where(self) -> str:
        """Return the innermost lines that the thread is in, from the inside out."""
        lines = islice(traceback.walk_stack(sys._current_frames().get(self._thread_id)), DEEPEST)
        return "<".join(f"{Path(frame.f_code.co_filename).name}:{line}" for frame, line in lines)

    def _leave(self) -> None:
        with self._lock:
            self._is_inside = False
            was_sent, self._was_sent = self._was_sent, False
            if was_sent:
                _take_back()


class Watch(threading.Thread):
    """Looks at every watched run, a few times a second."""

    def __init__(self, *, on_stuck: Callable[[], None]) -> None:
        super().__init__(name="pgqueue-watch", daemon=True)
        self._on_stuck = on_stuck
        self._at_each_tick: list[Callable[[], None]] = []
        # Changed by every thread, one step each; copied in one step too.
        self._runs: set[Run] = set()
        self._stuck: set[Run] = set()
        self._has_runs = threading.Event()
        self._stopped = threading.Event()

    def at_each_tick(self, look: Callable[[], None]) -> None:
        """Have something else looked at too, before the start."""
        self._at_each_tick.append(look)

    def call(self, prepared: Prepared) -> Any:
        """Call a task on this thread; without a limit there is nothing to watch."""
        if prepared.held.limit_seconds() is None:
            return call_here(prepared.call)
        run = ThreadRun(prepared.held)
        with self.watching(run):
            return run.call(partial(call_here, prepared.call))

    @contextmanager
    def watching(self, run: Run) -> Iterator[None]:
        """Watch a run for as long as the block lasts."""
        self._runs.add(run)
        self._has_runs.set()
        try:
            yield
        finally:
            self._runs.discard(run)

    def stuck(self) -> list[Run]:
        """Return the runs that went on for longer than the grace after their limit, and still do."""
        return list(self._stuck & self._runs)

    def stop(self) -> None:
        """Watch no more."""
        self._stopped.set()
        self._has_runs.set()

    def run(self) -> None:
        """Watch until stopped. Whatever goes wrong with one run, the others are watched on."""
        while not self._stopped.is_set():
            self._has_runs.wait()
            self._has_runs.clear()
            while self._runs and not self._stopped.wait(TICK_SECONDS):
                try:
                    self._tick()
                except Exception as error:
                    logger.error("watch.failed %s", told(error))

    def _tick(self) -> None:
        for look in self._at_each_tick:
            look()
        for run in list(self._runs):
            self._look(run, time.monotonic() - run.began_at)

    def _look(self, run: Run, seconds: float) -> None:
        held = run.held
        if run.limit_seconds is not None and seconds >= run.limit_seconds:
            if not held.timed_out:
                held.timed_out = True
                logger.warning("job.timed_out %s", _facts(run, seconds))
                run.interrupt()
            elif seconds >= run.limit_seconds + held.settings().kill_grace_seconds and run not in self._stuck:
                logger.error("job.stuck %s", _facts(run, seconds))
                self._stuck.add(run)
                self._on_stuck()
        if run.hears_requests and held.stop_requested and not run.was_told:
            run.was_told = True
            run.interrupt()


def _facts(run: Run, seconds: float) -> str:
    lease = run.held.lease
    return f"job={lease.id} task={lease.task} seconds={seconds:.1f} at={run.where()}"


def _raise_in_thread(thread_id: int) -> bool:
    """Have the interpreter raise `JobTimeoutError` in a thread. Return whether it knows the thread.

    https://docs.python.org/3/c-api/init.html#c.PyThreadState_SetAsyncExc
    """
    error = ctypes.py_object(JobTimeoutError)
    return bool(ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), error))


def _take_back() -> None:
    """Leave no interruption of this thread pending, whether the one that was sent has been raised or not.

    The interpreter has a call for that, with NULL for the exception. In Python 3.11 that call leaves the interpreter's
    request for attention set for ever, and a thread with a trace or profile function then never gets past the first
    line of a function. An exception that is raised clears the request, and a thread has one pending at most.
    """
    try:
        is_due = _raise_in_thread(threading.get_ident())
        while is_due:
            pass
    except JobTimeoutError:
        pass


def _interruptions_hang() -> bool:
    """Return whether an interruption may hang the interpreter: in Python 3.11, while code is traced or profiled.

    Every traced thread stands still until the interrupted one has taken its exception, which a call inside C code
    may do late or never.
    """
    if sys.version_info >= (3, 12):
        return False
    return any(look() is not None for look in (sys.gettrace, sys.getprofile, threading.gettrace, threading.getprofile))
