"""Ask about unknown outcomes beside the jobs: on a thread of its own, in no slot."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from ..foreign import told
from ..logs import get_logger
from ..probing import ask_next
from ..protocol.lending import lender
from ..protocol.probing import next_question_seconds

logger = get_logger(__name__)

LONGEST_PAUSE_SECONDS = 6.0
"""Longest time between two looks whether a question is due. They read an index of unknown jobs alone."""
TAKEN_PAUSE_SECONDS = 0.05
"""How long another worker may need to put on record that it asks what was due."""
FAILED_PAUSE_SECONDS = 5.0


class Prober(threading.Thread):
    """Asks one question at a time, where this process has tasks with probes.

    A daemon: nothing waits for an answer when the process ends, and its question is asked again by another.
    """

    def __init__(self, *, alias: str, worker_id: int, tasks: Sequence[str]) -> None:
        super().__init__(name="pgqueue-probe", daemon=True)
        self._worker_id = worker_id
        self._tasks = tuple(tasks)
        self._lend = partial(lender.lend, alias)
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start, if there is anything that could be asked."""
        if self._tasks:
            super().start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()

    def run(self) -> None:
        """Ask until stopped. Whatever goes wrong, the next question is asked."""
        pause = 0.0
        while not self._stopped.wait(pause):
            try:
                pause = self._ask()
            except Exception as error:
                logger.warning("probe.unasked worker=%d %s", self._worker_id, told(error))
                pause = FAILED_PAUSE_SECONDS

    def _ask(self) -> float:
        """Ask what is due, and return how long to pause. Where nothing is, one statement says so."""
        with self._lend() as connection:
            seconds = next_question_seconds(connection, tasks=self._tasks)
        if seconds is None or seconds > 0:
            return LONGEST_PAUSE_SECONDS if seconds is None else min(seconds, LONGEST_PAUSE_SECONDS)
        asked = ask_next(self._lend, worker_id=self._worker_id, tasks=self._tasks)
        return TAKEN_PAUSE_SECONDS if asked is None else 0.0
