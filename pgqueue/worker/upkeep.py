"""What a worker does beside its jobs to keep the tables in order: nothing here can delay a claim, or end a process."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import psycopg

from ..logs import get_logger
from ..protocol.connecting import connect
from ..protocol.tallying import RETENTION_SECONDS
from ..protocol.upkeep import BATCH, declare_limits, name_queue, prune_old
from .tally import Tally

logger = get_logger(__name__)

ROUND_SECONDS = 20.0
"""Time between two rounds. One with nothing to do asks the server nothing, and makes no connection."""
SWEEP_SECONDS = 3600.0
"""Time between two sweeps through what may be too old, by chance shorter or longer."""
SLICE_SECONDS = 1.0
"""How long one round goes on with a sweep."""
REST_SECONDS = 4.0
"""Pause before the next slice of a sweep: a large one takes a fifth of a connection's time."""
STOP_SECONDS = 2.0
"""Longest wait for the last round of a process that ends."""


@dataclass
class Sweep:
    """A walk through one table, by number."""

    statement: str
    retention_seconds: float
    after_id: int = 0
    limit: int = BATCH
    is_over: bool = False

    def begin(self) -> None:
        """Start again from the first row."""
        self.after_id, self.is_over = 0, False

    def go_on(self, connection: psycopg.Connection[Any]) -> None:
        """Prune the next batch. One that fails ends the walk, and the batches of the next one are smaller."""
        self.is_over = True
        limit, self.limit = self.limit, max(self.limit // 10, 1)
        pruned = prune_old(
            connection,
            self.statement,
            after_id=self.after_id,
            retention_seconds=self.retention_seconds,
            limit=limit,
        )
        self.after_id, self.is_over, self.limit = pruned.last_id, pruned.is_over, min(limit * 2, BATCH)


class Upkeep(threading.Thread):
    """Writes figures, names queues, declares limits and prunes, in rounds.

    It has a connection only during a round. Each part fails for itself: it is logged and tried again in a later round.
    """

    def __init__(
        self,
        *,
        alias: str,
        worker_id: int,
        tally: Tally,
        limits: Mapping[str, Mapping[str, Any]] | None,
        retention_seconds: float,
    ) -> None:
        """Take the settings' limits where they could not be declared at the start, else None.

        `retention_seconds` is that of workers and windows.
        """
        super().__init__(name="pgqueue-upkeep", daemon=True)
        self._alias = alias
        self._worker_id = worker_id
        self._tally = tally
        self._limits = limits
        self._found: SimpleQueue[str] = SimpleQueue()
        self._unnamed: set[str] = set()
        self._sweeps = (
            Sweep("prune_workers", retention_seconds),
            Sweep("prune_windows", retention_seconds),
            Sweep("prune_minute_stats", RETENTION_SECONDS),
        )
        self._sweep_at = 0.0
        self._failures: Counter[str] = Counter()
        self._due = threading.Event()
        self._stopped = threading.Event()

    def add_queues(self, queues: Iterable[str]) -> None:
        """Give queues that were seen for the first time their rows, soon."""
        for queue in queues:
            self._found.put(queue)
            self._due.set()

    def stop(self) -> None:
        """Write what is left, and end. A server that does not answer is not waited for."""
        self._stopped.set()
        self._due.set()
        self.join(STOP_SECONDS)

    def run(self) -> None:
        """Take rounds until stopped, and one more."""
        while not self._stopped.is_set():
            self._round()
            self._due.wait(REST_SECONDS if self._is_sweeping() else ROUND_SECONDS)
            self._due.clear()
        self._round()

    def _round(self) -> None:
        self._collect()
        if self._has_work():
            with self._trying("connection"), connect(self._alias, role="upkeep") as connection:
                self._work(connection)

    def _collect(self) -> None:
        with suppress(Empty):
            while True:
                self._unnamed.add(self._found.get_nowait())
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + SWEEP_SECONDS * random.uniform(0.5, 1.5)
            for sweep in self._sweeps:
                sweep.begin()

    def _has_work(self) -> bool:
        is_due = self._limits is not None or self._unnamed or self._tally.has_news()
        return bool(is_due or self._is_sweeping())

    def _is_sweeping(self) -> bool:
        return not self._stopped.is_set() and not all(sweep.is_over for sweep in self._sweeps)

    def _work(self, connection: psycopg.Connection[Any]) -> None:
        """Do what is due. One part that fails leaves the others to be done."""
        if self._limits is not None:
            with self._trying("limits"):
                declare_limits(connection, self._limits)
                self._limits = None
        for name in sorted(self._unnamed):
            with self._trying("queues"):
                name_queue(connection, name)
                self._unnamed.discard(name)
        with self._trying("figures"):
            self._tally.flush(connection)
        until = time.monotonic() + SLICE_SECONDS
        for sweep in self._sweeps:
            while not (sweep.is_over or self._stopped.is_set() or time.monotonic() > until):
                with self._trying(sweep.statement):
                    sweep.go_on(connection)

    @contextmanager
    def _trying(self, part: str) -> Iterator[None]:
        """Log what goes wrong, the first time, the second, the fourth and so on until it goes well again."""
        try:
            yield
        except Exception as error:
            self._failures[part] += 1
            if (failures := self._failures[part]).bit_count() == 1:
                logger.warning(
                    "upkeep.failed worker=%d part=%s failures=%d error=%s sqlstate=%s",
                    self._worker_id,
                    part,
                    failures,
                    type(error).__name__,
                    getattr(error, "sqlstate", None) or "-",
                )
        else:
            self._failures.pop(part, None)
