"""The worker's main loop: settle what ended, look what is due, claim, hand out, sleep."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import Any

import psycopg

from .. import conf
from ..backoff import delay_seconds
from ..holding import Held, Holdings, boot_seconds
from ..protocol.claiming import Claimant, claim, find_unheard, look
from ..protocol.connecting import connect
from ..protocol.listening import wake
from ..protocol.registering import name_queue
from ..protocol.settling import Ending, EndingKind, settle
from ..states import Lane
from ..takeover import take_over_expired
from .executor import Executor
from .finishing import Finished, notice_of
from .inbox import Inbox, Mail, Signal
from .options import Options
from .pace import Pace

logger = logging.getLogger(__name__)

BUSY_LOOK_SECONDS = 1.0
"""Longest time between two looks while work flows: other lanes and expired leases must not wait for a lull."""
LOCKED_RETRY_SECONDS = 0.1
"""Pause before an ending is sent again whose row somebody had locked."""
RECONNECT_CAP_SECONDS = 10.0


class Dispatcher:
    """Owns the protocol connection. Everything it knows of the outside comes through the inbox."""

    def __init__(
        self,
        *,
        options: Options,
        claimant: Claimant,
        holdings: Holdings,
        executor: Executor,
        inbox: Inbox,
        is_listening: Callable[[], bool],
        on_drain: Callable[[], None],
    ) -> None:
        settings = conf.current()
        self._options = options
        self._claimant = claimant
        self._holdings = holdings
        self._executor = executor
        self._inbox = inbox
        self._is_listening = is_listening
        self._on_drain = on_drain
        self._notify_window_seconds = settings.notify_window_seconds
        self._poll_without_listen_seconds = settings.poll_without_listen_seconds
        self._pace = Pace(
            threads=options.concurrency,
            prefetch_seconds=settings.prefetch_seconds,
            batch_size=settings.batch_size,
        )
        self._connection: psycopg.Connection[Any] | None = None
        self._failures = 0
        self._endings: list[Ending] = []
        self._due: set[Lane] = {Lane.PLAIN}
        self._look_at = 0.0
        self._laned_first = False
        self._alone: Held | None = None
        self._alone_not_before = 0.0
        self._claimed = 0
        self._named: set[str] = set()
        self._draining = False
        self.ran_out = False

    def run(self) -> None:
        """Work until told to stop, or until the options say that it is done."""
        mail = Mail()
        while True:
            pause = self._turn_safely(mail)
            if self._is_done():
                break
            mail = self._inbox.take(timeout_seconds=pause)
        self._close()

    def _turn_safely(self, mail: Mail) -> float:
        """Take a turn and return how long to sleep; a lost server is waited for, with everything kept."""
        self._read(mail)
        try:
            self._turn()
        except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError, OSError) as error:
            self._close()
            self._failures += 1
            logger.warning("database.failed failures=%d error=%s", self._failures, type(error).__name__)
            return delay_seconds(self._failures, base_seconds=0.1, cap_seconds=RECONNECT_CAP_SECONDS)
        self._failures = 0
        return self._pause()

    def _read(self, mail: Mail) -> None:
        self._endings.extend(mail.endings)
        self._pace.note(ending.run_seconds for ending in mail.endings if ending.kind is not EndingKind.RELEASE)
        if Signal.WAKE in mail.signals:
            # What another process left unsaid within the window is found by the look after it.
            self._due.add(Lane.PLAIN)
            self._look_soon(self._notify_window_seconds)
        if Signal.LEASES_RAN_OUT in mail.signals:
            logger.error("worker.stopping reason=leases_ran_out worker=%d", self._claimant.worker_id)
            self.ran_out = True
        if mail.signals & {Signal.STOP, Signal.LEASES_RAN_OUT}:
            self._drain()

    def _drain(self) -> None:
        if self._draining:
            return
        self._draining = True
        self._on_drain()
        logger.info("worker.draining worker=%d held=%d", self._claimant.worker_id, len(self._holdings))
        for held in self._executor.withdraw():
            self._endings.append(Ending(EndingKind.RELEASE, held.lease.id, held.lease.fence))

    def _turn(self) -> None:
        connection = self._connected()
        self._settle(connection)
        if time.monotonic() >= self._look_at:
            self._look(connection)
        if not self._draining:
            self._claim_due(connection)

    def _connected(self) -> psycopg.Connection[Any]:
        """Return the connection; a new one first gives back claims whose answer the old one never brought."""
        if self._connection is None:
            connection = connect(self._options.alias, role="worker")
            self._connection = connection
            unheard = find_unheard(
                connection, worker_id=self._claimant.worker_id, held_ids=list(self._holdings.fences())
            )
            for id, fence in unheard:
                logger.warning("claim.unheard job=%d fence=%d", id, fence)
                self._endings.append(Ending(EndingKind.RELEASE, id, fence))
        return self._connection

    # -- settling ------------------------------------------------------------------------------------------

    def _settle(self, connection: psycopg.Connection[Any]) -> None:
        if not self._endings:
            return
        settled = settle(connection, worker_id=self._claimant.worker_id, endings=self._endings)
        endings, self._endings = self._endings, settled.busy
        for ending in settled.lost:
            logger.warning(
                "ending.refused job=%d fence=%d kind=%s: the lease was lost",
                ending.id,
                ending.fence,
                ending.kind,
            )
        still_busy = {ending.id for ending in settled.busy}
        ended: list[Finished] = []
        for ending in endings:
            held = None if ending.id in still_busy else self._holdings.drop(ending.id)
            if held is not None:
                self._after(held, ending)
                if ending.id in settled.written:
                    ended.append(Finished(held.lease, ending, settled.written[ending.id]))
        self._tell(connection, ended)

    def _after(self, held: Held, ending: Ending) -> None:
        if held is self._alone:
            self._alone = None
            self._alone_not_before = time.monotonic() + ending.run_seconds
        if held.lease.lane == Lane.LANED:
            self._due.add(Lane.LANED)
        if ending.kind is EndingKind.RETRY:
            self._look_soon(ending.delay_seconds)

    def _tell(self, connection: psycopg.Connection[Any], ended: list[Finished]) -> None:
        notice = notice_of(ended)
        if notice is not None:
            self._executor.submit(notice)
        released = {one.lease.queue for one in ended if one.ending.kind is EndingKind.RELEASE}
        if released:
            wake(connection, sorted(released))

    # -- looking -------------------------------------------------------------------------------------------

    def _look(self, connection: psycopg.Connection[Any]) -> None:
        horizon = look(connection, self._claimant)
        for name in horizon.queues - self._named:
            name_queue(connection, name)
        self._named |= horizon.queues
        self._due = {Lane(lane) for lane in horizon.due_lanes}
        if horizon.next_expiry_seconds is not None and horizon.next_expiry_seconds <= 0:
            self._take_over(connection)
        longest = BUSY_LOOK_SECONDS if self._due else self._poll_seconds()
        waits = [horizon.next_due_seconds, horizon.next_expiry_seconds]
        self._look_at = time.monotonic() + min([longest, *(max(wait, 0.05) for wait in waits if wait is not None)])

    def _take_over(self, connection: psycopg.Connection[Any]) -> None:
        taken = take_over_expired(connection)
        for one in taken:
            self._due.add(Lane.ALONE)
            if one.verdict.delay_seconds:
                self._look_soon(one.verdict.delay_seconds)
        if taken:
            wake(connection, sorted({one.job.queue for one in taken}))

    def _poll_seconds(self) -> float:
        longest = self._options.poll_seconds
        if not self._is_listening():
            longest = min(longest, self._poll_without_listen_seconds)
        return longest * random.uniform(0.4, 1.0)

    def _look_soon(self, seconds: float) -> None:
        self._look_at = min(self._look_at, time.monotonic() + seconds)

    # -- claiming ------------------------------------------------------------------------------------------

    def _claim_due(self, connection: psycopg.Connection[Any]) -> None:
        """Claim from every lane that may have something due, the guarded lane first every other time.

        A job that has lost a lease waits until nothing is held, and is then held alone. After it, other work
        gets as much time as it took.
        """
        if self._alone is not None:
            return
        if Lane.ALONE in self._due and time.monotonic() >= self._alone_not_before:
            if not len(self._holdings):
                self._claim_alone(connection)
            return
        self._laned_first = not self._laned_first
        lanes = (Lane.LANED, Lane.PLAIN) if self._laned_first else (Lane.PLAIN, Lane.LANED)
        for lane in lanes:
            if lane in self._due:
                self._claim(connection, lane, self._room(lane))

    def _claim_alone(self, connection: psycopg.Connection[Any]) -> None:
        got = self._claim(connection, Lane.ALONE, 1)
        if got:
            self._alone = got[0]

    def _room(self, lane: Lane) -> int:
        """Return how many leases to ask for: none in advance from the guarded lane, none in dribs from the plain."""
        held = len(self._holdings)
        target = self._options.concurrency if lane is Lane.LANED else self._pace.target()
        room = target - held
        if held >= self._options.concurrency and room * 2 < target:
            return 0
        return room if self._options.max_jobs is None else min(room, self._options.max_jobs - self._claimed)

    def _claim(self, connection: psycopg.Connection[Any], lane: Lane, limit: int) -> list[Held]:
        if limit <= 0:
            return []
        asked_at = boot_seconds()
        leases = claim(connection, self._claimant, lane=lane, limit=limit)
        added = self._holdings.add(leases, asked_at=asked_at)
        self._claimed += len(added)
        for held in added:
            self._executor.submit(held)
        if len(added) < limit:
            self._due.discard(lane)
            if added:
                self._look_at = 0.0
        return added

    # -- sleeping and ending -------------------------------------------------------------------------------

    def _pause(self) -> float:
        """Return how long to sleep unless the inbox wakes us: not at all while there is room for due work."""
        if self._endings:
            return LOCKED_RETRY_SECONDS
        if self._draining:
            return self._poll_seconds()
        if any(lane in self._due and self._room(lane) > 0 for lane in (Lane.PLAIN, Lane.LANED)) and not self._waits():
            return 0.0
        return max(0.0, self._look_at - time.monotonic())

    def _waits(self) -> bool:
        """Say whether claims wait for a job that runs alone, or for room for one."""
        return self._alone is not None or (
            Lane.ALONE in self._due and time.monotonic() >= self._alone_not_before and bool(len(self._holdings))
        )

    def _is_done(self) -> bool:
        if self._endings or len(self._holdings) or not self._executor.is_idle():
            return False
        if self._draining:
            return True
        if self._options.max_jobs is not None and self._claimed >= self._options.max_jobs:
            return True
        return self._options.burst and not self._due and self._failures == 0 and self._look_at > time.monotonic()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
