"""When a worker takes a job that is to run alone, and how much time other work gets in return."""

from __future__ import annotations

import random
from collections.abc import Callable

from ..protocol.looking import Horizon
from ..states import Lane

PATIENCE_SECONDS = 10.0
"""Longest pause of claims until the process is empty: what it runs may last for hours."""
TIMES_THE_WAIT = 10
"""Other work gets this many times what a wait in vain took. Such waits then cost at most a tenth of the time."""
SPREAD = 0.5
"""A random share that is added to each pause between two waits, so that workers do not wait in step."""
FRESH_SECONDS = 15.0
"""How long a new process serves other work first. The job may have killed the process before this one, and with it
the memory of what other work was to get. It is longer than `Patience.steady_seconds` of the supervisor, so that a
process with other work does not count as one that died early."""
OVERDUE_SECONDS = 300.0
"""An isolated job that has been due for so long found no empty process, and runs in quarantine after all."""


def is_overdue(horizon: Horizon) -> bool:
    """Return whether an isolated job has found no empty process for a long time."""
    return horizon.isolated_seconds is not None and horizon.isolated_seconds >= OVERDUE_SECONDS


def needs_quarantine(horizon: Horizon) -> bool:
    """Return whether a job is due that a quarantine takes."""
    return Lane.ALONE in horizon.due_lanes or is_overdue(horizon)


class Isolation:
    """Remembers the job that runs alone, or since when the process waits to be empty for one."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._running: int | None = None
        self._waiting_since: float | None = None
        self.not_before = 0.0
        """Until then other work goes first, if there is any."""
        self._let_others_go_first(FRESH_SECONDS)

    @property
    def is_running(self) -> bool:
        """Return whether a job runs alone."""
        return self._running is not None

    def start(self, job_id: int) -> None:
        """Note that this job runs alone from now on."""
        self._running = job_id
        self._waiting_since = None

    def end(self, job_id: int, *, run_seconds: float) -> None:
        """Note the end of a run. If the job ran alone, other work gets as much time as it took."""
        if job_id == self._running:
            self._running = None
            self.not_before = self._clock() + run_seconds

    def is_next(self, *, others_wait: bool) -> bool:
        """Return whether a due job goes before other work."""
        return not others_wait or self._clock() >= self.not_before

    def wait(self, *, held: int) -> None:
        """Note that claims pause until no leases are held. The wait ends when that takes too long."""
        if self._waiting_since is None:
            self._waiting_since = self._clock()
        elif held and self._clock() - self._waiting_since >= PATIENCE_SECONDS:
            self.give_way()

    def give_way(self) -> None:
        """Note that claims pause no more. If the wait was in vain, other work goes first for a while."""
        if self._waiting_since is not None:
            self._let_others_go_first(TIMES_THE_WAIT * (self._clock() - self._waiting_since))
            self._waiting_since = None

    def _let_others_go_first(self, seconds: float) -> None:
        until = self._clock() + seconds * random.uniform(1, 1 + SPREAD)
        self.not_before = max(self.not_before, until)
