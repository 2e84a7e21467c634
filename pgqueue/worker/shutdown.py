"""End the process within a bounded time, whatever tasks have left in it.

The interpreter's own exit waits for every thread that is no daemon and for every exit hook. Where a task has left a
thread, a pool with a call that hangs, or a child process, that exit may never come to its end.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from django.core.management import CommandError

from ..logs import get_logger

logger = get_logger(__name__)

GRACE_SECONDS = 5.0
"""Time for exit hooks, and for threads that are no daemons to end."""
TELLING_SECONDS = 0.5
"""Time to log that the grace is over: a handler of the log may hang too."""
WATCHDOG_SECONDS = 7.0
"""When the process ends though no Python code can run any more. The status is then 1."""
CHILDREN = Path("/proc/self/task")


def run_to_the_end(work: Callable[[], object]) -> NoReturn:
    """Call `work`, and end this process with the status that it would have ended with."""
    status = 0
    try:
        work()
    except BaseException as error:
        status = _status_of(error)
        if not isinstance(error, SystemExit):
            with contextlib.suppress(BaseException):
                sys.excepthook(type(error), error, error.__traceback__)
    end_process(status)


def end_process(status: int) -> NoReturn:
    """Run the exit hooks and end the process, when they have run or the grace is over.

    A stream that cannot be flushed changes nothing about the status; the interpreter's own exit makes it 120.
    """
    try:
        set_deadline(status)
        _tell_what_is_left()
        _run_exit_hooks()
        _flush()
    finally:
        os._exit(status)


def _status_of(error: BaseException | None) -> int:
    """Return the status that was asked for, though closing a connection or printing the reason has failed since."""
    while error is not None:
        if isinstance(error, SystemExit):
            return error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error, CommandError):
            return error.returncode
        error = error.__context__
    return 1


def set_deadline(status: int) -> None:
    """End the process with this status when the grace is over.

    Raise `RuntimeError` when no thread can be started: then there is no time for hooks either.
    """
    threading.Thread(target=_end_after_grace, args=(status,), name="pgqueue-deadline", daemon=True).start()
    # The watchdog is a thread of the C library: it needs no interpreter lock, which a call in C may never give back.
    with contextlib.suppress(Exception):
        faulthandler.dump_traceback_later(WATCHDOG_SECONDS, exit=True, file=sys.__stderr__ or sys.stderr)


def _end_after_grace(status: int) -> None:
    gate = threading.Lock()
    gate.acquire()
    # A lock waits in C: nothing that a task has patched, such as `time.sleep`, comes between.
    gate.acquire(timeout=GRACE_SECONDS)
    with contextlib.suppress(BaseException):
        threading.Thread(target=_tell_of_the_end, name="pgqueue-teller", daemon=True).start()
        gate.acquire(timeout=TELLING_SECONDS)
    os._exit(status)


def _tell_of_the_end() -> None:
    logger.warning(
        "worker.cut_off pid=%d grace_seconds=%.0f threads=%s", os.getpid(), GRACE_SECONDS, _listed(_threads())
    )
    _flush()


def _tell_what_is_left() -> None:
    with contextlib.suppress(Exception):
        threads, children = _threads(), _children()
        if threads or children:
            facts = (os.getpid(), _listed(threads), _listed(children))
            logger.info("worker.leftovers pid=%d threads=%s children=%s", *facts)


def _threads() -> list[str]:
    """Return the names of the threads that an exit waits for, without the worker's own."""
    waited_for = (thread for thread in threading.enumerate() if not thread.daemon)
    names = (thread.name for thread in waited_for if thread is not threading.main_thread())
    return sorted(name for name in names if not name.startswith("pgqueue-"))


def _children() -> list[int]:
    """Return the pids of the processes that were started in this one and still run."""
    pids = {child.pid for child in multiprocessing.active_children() if child.pid is not None}
    for listed in CHILDREN.glob("*/children"):
        with contextlib.suppress(OSError):
            pids.update(map(int, listed.read_text().split()))
    return sorted(pids)


def _listed(items: list[str] | list[int]) -> str:
    return ",".join(str(item).replace(" ", "_") for item in items) or "-"


def _run_exit_hooks() -> None:
    """Do what the interpreter does when a program has ended: wait for threads, then call what `atexit` was given."""
    for run_hooks in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        with contextlib.suppress(BaseException):
            run_hooks()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
