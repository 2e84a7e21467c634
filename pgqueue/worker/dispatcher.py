"""The worker's main loop: settle what ended, look what is due, claim, hand out, sleep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import psycopg

from .. import conf
from ..holding import Holdings, boot_seconds
from ..logs import get_logger
from ..protocol.claiming import Claimant, Lease, Turn, claim, find_unheard
from ..protocol.connecting import connect
from ..protocol.looking import Horizon
from ..protocol.pipelining import Wish, settle_and_claim
from ..protocol.settling import Ending, EndingKind, Settled, settle_each
from ..server_errors import DATABASE_ERRORS
from ..states import Lane
from .agenda import Agenda, Source
from .answers import Answers
from .executor import Work
from .finishing import Aftermath, leave_to_others
from .inbox import Inbox, Mail, Signal
from .lookout import Lookout
from .options import Options
from .orders import Orders
from .outage import Outage
from .pace import Pool, crew_of, paces_of
from .pools import Pools
from .postponed import Postponed
from .stall import Stall
from .tally import Tally

logger = get_logger(__name__)

FEW = 100
"""Endings that are worth waiting for others while the threads have work: a hundred travel as cheaply as more."""
NAP_SECONDS = 0.01
"""Pause before another look whether one long job keeps short ones waiting."""
LOCKED_RETRY_SECONDS = 0.1
"""Pause before an ending is sent again whose row somebody had locked."""
STUCK_SECONDS = 1.0
"""Pause before another look whether all but the stuck have ended, or heartbeats get through again."""
Ended = list[tuple[Lease, Ending]]


class Dispatcher:
    """Owns the protocol connection. Everything it knows of the outside comes through the inbox."""

    def __init__(
        self,
        *,
        options: Options,
        claimant: Claimant,
        holdings: Holdings,
        pools: Pools,
        inbox: Inbox,
        tally: Tally,
        stall: Stall,
        outage: Outage,
        is_listening: Callable[[], bool],
        on_drain: Callable[[], None],
        on_look: Callable[[Horizon], None],
    ) -> None:
        self._options = options
        self._claimant = claimant
        self._holdings = holdings
        self._pools = pools
        self._claimants = pools.claimants(claimant)
        self._inbox = inbox
        self._stall = stall
        self._outage = outage
        self._on_drain = on_drain
        self._paces = paces_of(pools.slots)
        self._linger_seconds = conf.current().settle_max_delay_seconds
        window, lanes = conf.current().notify_window_seconds, options.lanes
        self._agenda = Agenda(paces=self._paces, notify_window_seconds=window, max_jobs=options.max_jobs, lanes=lanes)
        self._turns: defaultdict[Source, Turn] = defaultdict(Turn)
        self._connection: psycopg.Connection[Any] | None = None
        self._endings: list[Ending] = []
        self._postponed = Postponed(self._agenda.brake)
        self.aftermath = Aftermath(tally, submit=self._submit, alias=options.alias)
        self._lookout = Lookout(
            claimant=claimant,
            agenda=self._agenda,
            turns=self._turns,
            aftermath=self.aftermath,
            poll_seconds=options.poll_seconds,
            is_listening=is_listening,
            find_unheard=self._give_back_unheard,
            on_look=on_look,
            kept=holdings.kept,
        )
        self._answers = Answers(forget=self._forget, hand_out=self._hand_out, on_unread=self._lookout.doubt)
        self._has_lost_one = self._draining = False
        self.orders = Orders()

    def run(self) -> None:
        """Work until told to stop, or until the options say that it is done."""
        pause = 0.0
        while True:
            # Read before the first turn too: a signal may have come during the start.
            mail = self._inbox.take(timeout_seconds=pause)
            if 0 < len(mail.endings) < FEW and not self._pools.runs_low():
                self._inbox.linger(mail, seconds=self._linger_seconds)
            if pause > 0 and not mail.endings and not mail.signals:
                # What is in progress takes its time, and must not keep what waits behind it.
                self._pools.spread()
            self._read(mail)
            self._stall.begin()
            pause = self._turn_safely()
            if pause > 0 or not len(self._holdings):
                self.aftermath.catch_up()
            self._stall.end()
            if self._pools.look_for_gone():
                self._inbox.put(Signal.THREAD_GONE)
            if self._is_done():
                break
        self._close()

    def _read(self, mail: Mail) -> None:
        self._endings.extend(mail.endings)
        if Signal.WAKE in mail.signals:
            self._agenda.wake()
        wants_end = self.orders.read(mail.signals, self._holdings, worker_id=self._claimant.worker_id)
        if wants_end and not self._draining:
            self._drain()

    def _drain(self) -> None:
        self._draining = True
        self._postponed.hurry()
        self._on_drain()
        logger.info("worker.draining worker=%d held=%d", self._claimant.worker_id, len(self._holdings))
        self._give_back()

    def _give_back(self) -> None:
        """Give back the leases that no thread has begun."""
        self._answers.read()
        for held in self._pools.withdraw():
            held.end()
            self._endings.append(Ending(EndingKind.RELEASE, held.lease.id, held.lease.fence))

    def _turn_safely(self) -> float:
        """Take a turn and return how long to sleep. A server that is away is waited for, with everything kept."""
        try:
            self._turn()
        except DATABASE_ERRORS as error:
            self._close()
            self._answers.read()
            pause = self._outage.fail(error)
            if self._outage.is_own() and not self.orders.is_unfit:
                self._inbox.put(Signal.NO_CONNECTION)
            if self._endings and (self._draining or self._outage.is_own()):
                endings, settled = self._endings, self._outage.rescue(self._endings)
                self._endings = settled.busy
                self._forget(endings, settled)
            return pause
        self._outage.end()
        return self._postponed.pause(self._pause())

    def _turn(self) -> None:
        connection = self._connected()
        if self._agenda.hoards(self._pools.waiting()):
            self._give_back()
            self._agenda.give_back()
        if due := self._postponed.due():
            settled = settle_each(connection, worker_id=self._claimant.worker_id, endings=due)
            leave_to_others(connection, self._forget(due, settled), is_draining=self._draining)
        if self._agenda.wants_look():
            self._step(connection, ())
            self._lookout.look(connection)
        may_claim = not (self._draining or self._holdings.is_cut_off())
        sources = self._agenda.sources(held=self._held(self._endings)) if may_claim else ()
        # What another source is to have first cannot travel with the endings.
        at_once = tuple(takewhile(lambda source: source.lane is Lane.PLAIN, sources))
        at_once = at_once if self._options.max_jobs is None else at_once[:1]
        self._step(connection, at_once)
        for source in sources[len(at_once) :]:
            self._claim(connection, source)

    def _connected(self) -> psycopg.Connection[Any]:
        """Return the connection; after a lost one, claims whose answer it never brought are given back."""
        if self._connection is None:
            timeout_seconds = conf.current().claim_timeout_seconds
            self._connection = connect(self._options.alias, role="worker", timeout_seconds=timeout_seconds)
            if self._has_lost_one:
                self._lookout.doubt()
                self._give_back_unheard(self._connection)
        return self._connection

    def _give_back_unheard(self, connection: psycopg.Connection[Any]) -> None:
        self._answers.read()
        held_ids = list(self._holdings.fences())
        for id, fence in find_unheard(connection, worker_id=self._claimant.worker_id, held_ids=held_ids):
            logger.warning("claim.unheard job=%d fence=%d", id, fence)
            self._endings.append(Ending(EndingKind.RELEASE, id, fence))
            self._agenda.wake()

    def _step(self, connection: psycopg.Connection[Any], sources: Sequence[Source]) -> None:
        """Settle what has ended and claim from plain sources, in one round trip."""
        held = self._held(self._endings)
        wishes: dict[Source, Wish] = {}
        for source in sources:
            limit = self._agenda.room(source, held=held)
            if limit > 0:
                wishes[source] = Wish(self._claimants[source.pool], limit, self._turns[source])
        if self._endings or wishes:
            self._travel(connection, wishes)
        if not self._inbox.has(FEW):
            self._answers.read()

    def _travel(self, connection: psycopg.Connection[Any], wishes: Mapping[Source, Wish]) -> None:
        """Send endings and wishes. While the server is busy, read what the trip before this one brought."""
        asked_at = boot_seconds()
        settled, hauls = settle_and_claim(
            connection,
            worker_id=self._claimant.worker_id,
            endings=self._endings,
            wishes=list(wishes.values()),
            meanwhile=self._catch_up,
        )
        endings, self._endings = self._endings, settled.busy
        for (source, wish), haul in zip(wishes.items(), hauls, strict=False):
            self._get(source, len(haul), asked=wish.limit, asked_at=asked_at)
            self._answers.add_claimed(source, haul, asked_at=asked_at)
        if settled.is_read:
            leave_to_others(connection, self._forget(endings, settled), is_draining=self._draining)
        else:
            self._answers.add_written(endings, settled)

    def _catch_up(self) -> None:
        self._answers.read()
        self.aftermath.catch_up()

    def _forget(self, endings: Sequence[Ending], settled: Settled) -> Ended:
        """Hold no longer what was settled or lost, have it counted and told, and return it."""
        for ending in settled.lost:
            logger.warning("ending.refused job=%d fence=%d kind=%s", ending.id, ending.fence, ending.kind)
        over = settled.over(endings)
        if self._postponed.is_concerned(settled):
            self._postponed.take(over, settled)
        ended = self._holdings.drop(over)
        self._agenda.end(ended, pool_of=self._pools.pool)
        self.aftermath.add(ended, settled.written)
        if endings and self._options.burst and not len(self._holdings) + self._answers.count_claimed():
            self._agenda.look_now()  # The last jobs may have enqueued others.
        return ended

    def _claim(self, connection: psycopg.Connection[Any], source: Source) -> None:
        limit = self._agenda.room(source, held=self._held())
        if limit == 0:
            return
        asked_at = boot_seconds()
        turn = self._turns[source]
        leases = claim(connection, self._claimants[source.pool], lane=source.lane, limit=limit, turn=turn)
        self._get(source, len(leases), asked=limit, asked_at=asked_at)
        self._hand_out(source, leases, asked_at)

    def _get(self, source: Source, count: int, *, asked: int, asked_at: float) -> None:
        took, more_in = boot_seconds() - asked_at, self._turns[source].more_in_seconds
        self._agenda.get(source, count, asked=asked, took_seconds=took, more_in_seconds=more_in)

    def _hand_out(self, source: Source, leases: list[Lease], asked_at: float) -> None:
        self._agenda.hold(source, leases)
        if leases:
            self._submit(self._holdings.add(leases, asked_at=asked_at))

    def _submit(self, works: Sequence[Work]) -> None:
        self._pools.submit(works, crew=crew_of(self._paces))

    def _held(self, ending: Sequence[Ending] = ()) -> Mapping[Pool, int]:
        """Return how many leases are held for each pool, leaving out those that end: written, refused or given here."""
        but = self._answers.ended_ids() | self._postponed.ids() | {one.id for one in ending}
        return self._answers.added_to(self._pools.held(self._holdings, but=but))

    def _pause(self) -> float:
        if self._endings:
            return LOCKED_RETRY_SECONDS
        if self._draining:
            return STUCK_SECONDS if self.orders.has_stuck else self._lookout.poll_seconds()
        if self._holdings.is_cut_off():
            return STUCK_SECONDS
        pause = self._agenda.pause(held=self._held(), waiting=self._pools.waiting())
        return min(pause, NAP_SECONDS) if self._pools.sleep_over_work() else pause

    def _is_done(self) -> bool:
        if self._is_in_vain():
            count = len(self._endings) + len(self._postponed)
            self.orders.give_up("endings_unwritten", worker_id=self._claimant.worker_id, count=count)
            return True
        if self._endings or self._postponed or self._answers.count_claimed() or not self._pools.is_idle():
            return False
        if len(self._holdings) > self._pools.hopeless(self._holdings):
            return self._draining and self._are_runs_gone()
        is_empty = self._options.burst and self._outage.failures == 0 and self._agenda.is_empty()
        return self._draining or self._agenda.is_spent() or is_empty

    def _are_runs_gone(self) -> bool:
        """Return whether leases are held that have neither a run nor an ending."""
        are_gone = not (self._inbox.has(1) or self._answers.ended_ids())
        if are_gone:
            self.orders.give_up("runs_gone", worker_id=self._claimant.worker_id, count=len(self._holdings))
        return are_gone

    def _is_in_vain(self) -> bool:
        """Return whether all that is left are endings that could not be written, and the wait for that is over."""
        if not ((self._endings or self._postponed) and self._pools.is_idle()):
            return False
        is_last = self.orders.told_to_stop or self._agenda.is_spent() or self._options.burst
        is_over = is_last or (self.orders.is_unfit and self._outage.is_too_long())
        return self._outage.is_own() or (is_over and self._holdings.are_all_lost())

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
            self._has_lost_one = True
