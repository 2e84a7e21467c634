"""Forks the worker processes, replaces those that end, and passes stop signals on.

The supervisor has no threads and no connections: a fork would copy both, and neither works in the copy.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connections

from ..backoff import delay_seconds
from ..logs import get_logger
from .exits import Exit, signal_name, told
from .lifeline import ASK_SECONDS, SupervisorEnd, WorkerEnd, open_line
from .signals import HANDLED

logger = get_logger(__name__)

RECYCLED = (Exit.DONE, Exit.MEMORY, Exit.STUCK)
"""Ends that a worker chose: its successor need not wait, whatever ended it."""
THREADS_END_SECONDS = 5.0
"""Longest wait for threads that are about to end, such as those of a closed pool."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how fast processes are replaced that die soon after their start, and when one is killed."""

    steady_seconds: float = 10.0
    """One that has lived so long is replaced at once, and what died before it is forgotten."""
    backoff_base_seconds: float = 1.0
    backoff_cap_seconds: float = 30.0
    deaths_in_a_row: int = 5
    """Given up when every process has died so often in a row; while one lives, the others are tried again."""
    deaf_seconds: float = 60.0
    """One that is to drain and does not answer for so long is killed. A lease: all that it had is lost by then."""
    linger_seconds: float = 8.0
    """One that has drained is killed when it has not ended by then: longer than its own grace and watchdog."""


@dataclass(slots=True)
class Slot:
    """The place of one process and its successors. Instants are monotonic."""

    number: int
    due_at: float | None = 0.0
    """When to start a process; None when one runs or none shall."""
    pid: int | None = None
    line: SupervisorEnd | None = None
    started_at: float = 0.0
    early_deaths: int = 0

    def forget(self) -> None:
        """Have no process any more."""
        self.pid = None
        self.hang_up()

    def hang_up(self) -> None:
        """Have no line any more."""
        if self.line is not None:
            self.line.close()
            self.line = None


def supervise(
    processes: int, *, burst: bool, on_stop: Callable[[], None], patience: Patience = Patience()
) -> int | WorkerEnd:
    """Return the exit status once all processes have ended; in each of those return its line: work is for it to do.

    There `on_stop` is called, on a thread, when the process is to drain. To be called on the main thread, after
    `close_connections()` and with no thread in `other_threads()`.
    """
    end = Supervisor(processes, burst=burst, patience=patience).run()
    if isinstance(end, WorkerEnd):
        end.start(on_stop)
    return end


def close_connections() -> None:
    """Close Django's connections and pools; each process opens its own."""
    for connection in connections.all():
        connection.close()
        close_pool = getattr(connection, "close_pool", None)
        if close_pool is not None:
            close_pool()


def other_threads() -> list[str]:
    """Return the names of all threads but the main one, once those that are ending have had time to."""
    deadline = time.monotonic() + THREADS_END_SECONDS
    others = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))
    return sorted(thread.name for thread in others if thread.is_alive())


class Supervisor:
    """A loop that sleeps until a child ends, a signal comes, or a successor is due."""

    def __init__(self, processes: int, *, burst: bool, patience: Patience) -> None:
        self._slots = [Slot(number) for number in range(1, processes + 1)]
        self._burst = burst
        self._patience = patience
        self._stopping = False
        self._has_signal = False
        self._status: int = Exit.DONE

    def run(self) -> int | WorkerEnd:
        """Supervise to the end and return the exit status; in a child, its line."""
        logger.info("supervisor.started pid=%d processes=%d", os.getpid(), len(self._slots))
        with _wakeups() as wakeups:
            while any(slot.pid is not None or slot.due_at is not None for slot in self._slots):
                if (line := self._start_due()) is not None:
                    return line
                select.select([wakeups, *self._lines()], [], [], self._pause())
                self._reap(wakeups)
                self._look_after()
        logger.info("supervisor.stopped pid=%d status=%d", os.getpid(), self._status)
        return self._status

    def _start_due(self) -> WorkerEnd | None:
        """Fork what is due. In a child, return its line."""
        for slot in self._slots:
            if slot.due_at is not None and slot.due_at <= time.monotonic():
                ours, theirs = open_line()
                slot.line = SupervisorEnd(ours)
                pid = _fork()
                if pid == 0:
                    self._close_lines()
                    return WorkerEnd(theirs, slot=slot.number)
                os.close(theirs)
                slot.pid, slot.due_at, slot.started_at = pid, None, time.monotonic()
                logger.info("supervisor.child_started slot=%d pid=%d", slot.number, pid)
        return None

    def _lines(self) -> list[int]:
        return [descriptor for slot in self._slots if slot.line is not None for descriptor in slot.line.descriptors()]

    def _close_lines(self) -> None:
        """A child that kept a copy of one would keep another from seeing that the supervisor is gone."""
        for slot in self._slots:
            slot.hang_up()

    def _look_after(self) -> None:
        """Hear what the processes say, ask them to stop when they are to, and kill those that will not end."""
        for slot in self._slots:
            if slot.pid is None or slot.line is None:
                continue
            slot.line.listen()
            if self._stopping:
                slot.line.ask_to_stop()
            reason = slot.line.overdue(
                deaf_seconds=self._patience.deaf_seconds, linger_seconds=self._patience.linger_seconds
            )
            if reason is not None:
                logger.error("supervisor.killing slot=%d pid=%d reason=%s", slot.number, slot.pid, reason)
                os.kill(slot.pid, signal.SIGKILL)
                slot.hang_up()

    def _pause(self) -> float | None:
        now = time.monotonic()
        pauses = [max(0.0, slot.due_at - now) for slot in self._slots if slot.due_at is not None]
        if self._stopping or any(slot.line is not None and slot.line.has_stopped() for slot in self._slots):
            pauses.append(ASK_SECONDS)
        return min(pauses, default=None)

    def _stop(self, number: int) -> None:
        """Pass on the first stop signal; at the second nobody is waited for."""
        if not self._has_signal:
            self._has_signal = True
            logger.info("supervisor.draining signal=%s", signal_name(number))
            self._end_all(number)
            return
        logger.warning("supervisor.killing signal=%s", signal_name(number))
        self._status = Exit.FORCED
        self._end_all(signal.SIGKILL)

    def _end_all(self, number: int) -> None:
        self._stopping = True
        for slot in self._slots:
            slot.due_at = None
            if slot.pid is not None:
                os.kill(slot.pid, number)

    def _reap(self, wakeups: int) -> None:
        """Heed signals, and note which processes have ended.

        A signal that a process sent before its end is heard first: ends are collected, then signals read. A signal
        that was read may say that another process has ended: ends are collected once more.
        """
        numbers = None
        while numbers is None or numbers:
            ended = self._collect()
            numbers = _received(wakeups)
            for number in numbers:
                if number in HANDLED:
                    self._stop(number)
            for slot, pid, code in ended:
                self._note_end(slot, pid, code)
        self._give_up_if_hopeless()

    def _collect(self) -> list[tuple[Slot, int, int]]:
        """Return the slot, pid and exit code of each process that has ended; its slot has none any more."""
        ended = []
        for slot in self._slots:
            if slot.pid is not None:
                pid, wait_status = os.waitpid(slot.pid, os.WNOHANG)
                if pid:
                    ended.append((slot, pid, os.waitstatus_to_exitcode(wait_status)))
                    slot.forget()
        return ended

    def _give_up_if_hopeless(self) -> None:
        if not self._stopping and self._is_hopeless():
            self._status = Exit.CHILDREN_DIE
            logger.error("supervisor.stopping reason=children_die deaths_in_a_row=%d", self._patience.deaths_in_a_row)
            self._end_all(signal.SIGTERM)

    def _note_end(self, slot: Slot, pid: int, code: int) -> None:
        lived_seconds = time.monotonic() - slot.started_at
        wait = self._seconds_to_successor(slot, code, lived_seconds)
        level = logging.INFO if code in RECYCLED else logging.WARNING
        logger.log(
            level,
            "supervisor.child_ended slot=%d pid=%d %s lived_seconds=%.1f restart=%s",
            slot.number,
            pid,
            told(code),
            lived_seconds,
            "never" if wait is None else f"in_{wait:.1f}_seconds",
        )
        slot.due_at = None if wait is None else time.monotonic() + wait
        if self._stopping and code not in RECYCLED and self._status == Exit.DONE:
            self._status = code if code > 0 else Exit.FORCED

    def _seconds_to_successor(self, slot: Slot, code: int, lived_seconds: float) -> float | None:
        if self._stopping or (self._burst and code == Exit.DONE):
            return None
        if code in RECYCLED or lived_seconds >= self._patience.steady_seconds:
            slot.early_deaths = 0
            return 0.0
        slot.early_deaths += 1
        return delay_seconds(
            slot.early_deaths,
            base_seconds=self._patience.backoff_base_seconds,
            cap_seconds=self._patience.backoff_cap_seconds,
        )

    def _is_hopeless(self) -> bool:
        """Say whether every process that shall run has died soon after its start, again and again."""
        wanted = [slot for slot in self._slots if slot.pid is not None or slot.due_at is not None]
        return bool(wanted) and all(self._dies_again_and_again(slot) for slot in wanted)

    def _dies_again_and_again(self, slot: Slot) -> bool:
        steady = slot.pid is not None and time.monotonic() - slot.started_at >= self._patience.steady_seconds
        return not steady and slot.early_deaths >= self._patience.deaths_in_a_row


def _fork() -> int:
    """Fork with stop signals blocked: a child lets them in when its own handlers stand, and loses none."""
    close_connections()
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    pid = os.fork()
    if pid != 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    return pid


@contextmanager
def _wakeups() -> Iterator[int]:
    """Yield a descriptor from which every signal that came can be read, one byte each, in order.

    A child leaves this block too, and has then nothing left of it.
    """
    readable, writable = os.pipe()
    os.set_blocking(readable, False)
    os.set_blocking(writable, False)
    before = {number: signal.signal(number, lambda *_: None) for number in (*HANDLED, signal.SIGCHLD)}
    fd_before = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    try:
        yield readable
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(fd_before)
        os.close(readable)
        os.close(writable)


def _received(wakeups: int) -> bytes:
    """Return the numbers of the signals that have come."""
    try:
        return os.read(wakeups, 4096)
    except BlockingIOError:
        return b""
