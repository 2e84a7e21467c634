"""The demo's child processes: each in a group of its own, none left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

GRACE_SECONDS = 10
"""From the request to stop until the kill."""


class StoppedError(Exception):
    """Somebody asked the demo to end: Ctrl-C, SIGTERM or a closed terminal."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class Interrupts:
    """Takes the signals that ask the demo to end and raises `StoppedError` at the next `pause`.

    Nowhere else: an exception between a child's birth and our knowing of it, or during the clean-up, would
    leave the child running.
    """

    def __init__(self) -> None:
        self._received: int | None = None

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._receive)

    def pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while True:
            if self._received is not None:
                raise StoppedError(self._received)
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return
            time.sleep(min(remaining, 0.1))

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received = self._received or number


class Child:
    """One process, the leader of a group of its own; what it prints goes to two files."""

    def __init__(
        self, name: str, command: Sequence[str], process: subprocess.Popen[bytes], *, out: Path, log: Path
    ) -> None:
        self.name = name
        self.command = command
        self.pid = process.pid
        self.log = log
        self._process = process
        self._out = out
        self._ended = False

    def poll(self) -> int | None:
        """Return the exit status, None while it runs; at its end, end what is left of its group."""
        status = self._process.poll()
        if status is not None and not self._ended:
            # Now and not later: the number of a group that is gone can be given to somebody else's.
            self._ended = True
            self.signal(signal.SIGKILL)
        return status

    def wait(self, *, seconds: float) -> int | None:
        """Wait for the end and return the exit status, None if it still runs after `seconds`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.poll()

    def signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def output(self) -> str:
        return self._out.read_text(errors="replace")

    def last_words(self, *, lines: int = 8) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Children:
    """Starts processes and, when its block is left for whatever reason, ends them all with their groups."""

    def __init__(self, *, directory: Path, logs: Path) -> None:
        self.environment = dict(os.environ)
        """What the children started from now on see."""
        self._directory = directory
        self._logs = logs
        self._children: list[Child] = []

    def __enter__(self) -> Children:
        return self

    def __exit__(self, *exception: object) -> None:
        # The last one started is asked first, so that workers stop before the provider they talk to.
        _end(self._children[::-1])

    def start(self, name: str, command: Sequence[str]) -> Child:
        stem = name.replace(" ", "-")
        out, log = self._logs / f"{stem}.out", self._logs / f"{stem}.log"
        with out.open("wb") as out_file, log.open("wb") as log_file:
            process = subprocess.Popen(
                command,
                cwd=self._directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=log_file,
                process_group=0,
            )
        child = Child(name, command, process, out=out, log=log)
        self._children.append(child)
        return child


def _end(children: Sequence[Child]) -> None:
    """Ask every child that still runs to stop, then kill the groups of those that do not."""
    running = [child for child in children if child.poll() is None]
    for child in running:
        child.signal(signal.SIGTERM)
        child.signal(signal.SIGCONT)  # a stopped process answers nothing else
    deadline = time.monotonic() + GRACE_SECONDS
    for child in running:
        if child.wait(seconds=max(0.0, deadline - time.monotonic())) is None:
            child.signal(signal.SIGKILL)
            child.wait(seconds=GRACE_SECONDS)
