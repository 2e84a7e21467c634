"""Run jobs that have lost a lease in a process of their own, so that nothing else is lost with them.

The process is a new start of the same command. A fork would copy the locks of the worker's threads, but no threads.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from django.utils import autoreload

from ..backoff import delay_seconds
from ..logs import get_logger
from .exits import Exit, told
from .options import Options
from .pulse import PulseReader, PulseWriter

logger = get_logger(__name__)

STEADY_SECONDS = 10.0
"""A process that has lived so long is started again soon, whatever ended it."""
DEATH_CAP_SECONDS = 10.0
"""Longest pause after a process that died: the start of a process takes about a second of a core."""
IDLE_CAP_SECONDS = 60.0
"""Longest pause after a process that could claim nothing, say because the jobs' shard keys are busy for hours."""
PARENT_CHECK_SECONDS = 0.5
CHECK_SECONDS = 1.0
"""How often it is asked whether the process still runs Python code."""
LEAST_DEAF_SECONDS = 10.0
"""A process that shows no sign of life for so long, and for a lease, is killed: nothing of what it held is its own."""


class Quarantine(threading.Thread):
    """Keeps one such process at most, while there is work for it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        worker_id: int,
        on_end: Callable[[], None],
        deaf_seconds: float = LEAST_DEAF_SECONDS,
    ) -> None:
        super().__init__(name="pgqueue-quarantine", daemon=True)
        self._command = [*command, "--quarantine", str(worker_id), str(os.getpid())]
        # As they are now: a task may change both.
        self._directory = os.getcwd()
        self._environment = dict(os.environ)
        self._on_end = on_end
        self._deaf_seconds = deaf_seconds
        self._wanted = threading.Event()
        self._drained = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._failures = 0

    def want(self) -> None:
        """Note that a job is due for the process."""
        self._wanted.set()

    def drain(self) -> None:
        """Start no process any more, and have the running one finish its job and end."""
        with self._lock:
            self._drained.set()
            if self._process is not None:
                self._process.terminate()
        self._wanted.set()

    def stop(self, *, wait: bool) -> None:
        """Drain, and wait for the end. A process that is not waited for ends by itself once its parent is gone."""
        self.drain()
        if wait:
            self.join()
        elif self._process is not None:
            logger.warning("quarantine.left pid=%d", self._process.pid)

    def run(self) -> None:
        """Start a process whenever one is wanted, until drained."""
        while self._is_wanted():
            pause = self._run_one()
            self._wanted.clear()
            self._on_end()
            self._drained.wait(pause)

    def _is_wanted(self) -> bool:
        if not self._drained.is_set():
            self._wanted.wait()
        return not self._drained.is_set()

    def _run_one(self) -> float:
        """Run one process to its end, and return the pause after it."""
        try:
            with closing(PulseReader(deaf_seconds=self._deaf_seconds)) as pulse:
                return self._run_with(pulse)
        except OSError as error:
            pause = self._pause(cap_seconds=IDLE_CAP_SECONDS)
            logger.warning("quarantine.failed error=%s restart=in_%.1f_seconds", type(error).__name__, pause)
            return pause

    def _run_with(self, pulse: PulseReader) -> float:
        process = self._start(pulse)
        if process is None:
            return 0.0
        started_at = time.monotonic()
        code = _wait(process, pulse)
        with self._lock:
            self._process = None
        return self._note_end(process.pid, code, lived_seconds=time.monotonic() - started_at)

    def _start(self, pulse: PulseReader) -> subprocess.Popen[bytes] | None:
        try:
            with self._lock:
                if self._drained.is_set():
                    return None
                process = self._process = subprocess.Popen(
                    [*self._command, str(pulse.writable)],
                    stdin=subprocess.DEVNULL,
                    cwd=self._directory,
                    env=self._environment,
                    pass_fds=[pulse.writable],
                )
        finally:
            pulse.close_writable()
        logger.info("quarantine.started pid=%d", process.pid)
        return process

    def _note_end(self, pid: int, code: int, *, lived_seconds: float) -> float:
        if code == Exit.DONE or lived_seconds >= STEADY_SECONDS:
            self._failures = 0
        pause = 0.0
        if code != Exit.DONE:
            pause = self._pause(cap_seconds=IDLE_CAP_SECONDS if code == Exit.IDLE else DEATH_CAP_SECONDS)
        level = logging.INFO if code in (Exit.DONE, Exit.IDLE) else logging.WARNING
        facts = (pid, told(code), lived_seconds, pause)
        logger.log(level, "quarantine.ended pid=%d %s lived_seconds=%.1f pause_seconds=%.1f", *facts)
        return pause

    def _pause(self, *, cap_seconds: float) -> float:
        self._failures += 1
        return delay_seconds(self._failures, base_seconds=0.5, cap_seconds=cap_seconds)


def _wait(process: subprocess.Popen[bytes], pulse: PulseReader) -> int:
    """Wait for the end. A process that is frozen, or held in C by its task, would keep every later job waiting."""
    while True:
        try:
            return process.wait(timeout=CHECK_SECONDS)
        except subprocess.TimeoutExpired:
            if pulse.is_silent():
                logger.error("quarantine.killing pid=%d reason=deaf", process.pid)
                process.kill()


class ParentWatch(threading.Thread):
    """Tells once when the process that started this one is gone, however it went, and shows it that this one runs.

    A pipe would do so too, but not while another child of the parent holds a copy of its end.
    """

    def __init__(self, pid: int, *, pulse: PulseWriter, on_gone: Callable[[], None]) -> None:
        super().__init__(name="pgqueue-parent", daemon=True)
        self._pid = pid
        self._pulse = pulse
        self._on_gone = on_gone

    def run(self) -> None:
        """Watch until the parent is gone."""
        while os.getppid() == self._pid:
            self._pulse.beat()
            time.sleep(PARENT_CHECK_SECONDS)
        logger.warning("worker.orphaned pid=%d", os.getpid())
        self._on_gone()


def command_for(options: Options, *, name: str, verbosity: int) -> tuple[str, ...] | None:
    """Return the command line of a quarantine for such a worker, without whose it is; None where it cannot be told.

    The process must have been started by Django's command line, with `name` as the command.
    """
    if sys.argv[1:2] != [name]:
        return None
    try:
        words = [str(word) for word in autoreload.get_child_arguments()]
    except RuntimeError:  # The script that was started is not there.
        return None
    start = words[: len(words) - len(sys.argv[1:])]
    queues = [f"--queue={queue}" for queue in options.queues or ()]
    excluded = [f"--exclude-queue={queue}" for queue in options.excluded]
    return (
        *start,
        name,
        *queues,
        *excluded,
        f"--database={options.alias}",
        f"--lease-seconds={options.lease_seconds}",
        f"--poll-seconds={options.poll_seconds}",
        f"--verbosity={verbosity}",
        "--concurrency=1",
        "--async-concurrency=1",
        "--skip-checks",
    )
