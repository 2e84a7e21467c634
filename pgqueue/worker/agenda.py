"""What the dispatcher does next, and when. It is told what happened, and touches neither database nor threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..protocol.claiming import MOMENT_SECONDS, Lease
from ..protocol.looking import Horizon
from ..protocol.marks import rest_seconds
from ..protocol.settling import Ending, EndingKind
from ..states import Lane
from .brake import Brake
from .isolation import Isolation, is_overdue
from .pace import Pace, Pool

BUSY_LOOK_SECONDS = 1.0
"""Longest time between two looks while work flows: other lanes and expired leases must not wait for a lull."""
SHORTEST_NAP_SECONDS = 0.05
"""Shortest sleep until a known instant: the database's clock and ours need not agree to the millisecond."""
HOARD_SECONDS = 2.0
"""Leases that no thread has begun are given back when nothing has moved for so long: others may be idle."""

SLOW_CLAIM_SECONDS = 0.01
"""A claim for one pool that took so long and found too little rests: the rows that it read in vain, those of the other
pool, may be a million."""

START_SECONDS = 0.001
"""How long threads have to begin with what a short claim brought, before the next one or a look: until the dispatcher
sleeps, it keeps the interpreter from them. What they end in that time is settled first."""

GUARDED = (Lane.LANED, Lane.BOUND)
"""Lanes of which an ending may free a slot for others."""

Counts = Mapping[Pool, int]
"""How many leases are held for each pool."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a claim takes from: jobs of one lane, for one pool or for whichever."""

    lane: Lane
    pool: Pool | None


ALONE = Source(Lane.ALONE, None)
ISOLATED = Source(Lane.ISOLATED, None)
APART = (ALONE, ISOLATED)
"""Of these one job is held, and nothing beside it."""


class Agenda:
    """Which sources may have something due, how much to ask for, and how long to sleep."""

    def __init__(
        self,
        *,
        paces: Mapping[Pool, Pace],
        notify_window_seconds: float,
        max_jobs: int | None,
        lanes: Collection[Lane] = tuple(Lane),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._paces = paces
        self._notify_window_seconds = notify_window_seconds
        self._left = max_jobs
        self._lanes = self._own_lanes = frozenset(lanes)
        self._clock = clock
        self._due: set[Source] = self._sources(Lane.PLAIN)
        self._resting_until: dict[Source, float] = {}
        self._look_at = 0.0
        self._look_not_before = 0.0
        self._unsaid_until = 0.0
        self._moved_at = 0.0
        self._laned_first = False
        self._isolation = Isolation(clock=clock)
        self.brake = Brake(clock=clock)
        """Holds claims back while endings are refused."""

    # -- what happened -------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something was enqueued. What its process left unsaid within the window is found by the look after it."""
        woken = self._sources(Lane.PLAIN)
        self._due |= woken
        self._end_naps(woken)
        self._unsaid_until = self._clock() + self._notify_window_seconds
        self._look_within(self._notify_window_seconds)

    def see(self, horizon: Horizon, *, poll_seconds: float, took_seconds: float = 0.0) -> None:
        """Take in a look at the database."""
        self._look_not_before = self._clock() + rest_seconds(took_seconds)
        self._lanes = self._own_lanes
        if Lane.ALONE in self._own_lanes and is_overdue(horizon):
            self._lanes |= {Lane.ISOLATED}
        self._due = {source for lane in horizon.due_lanes for source in self._sources(Lane(lane))}
        longest = BUSY_LOOK_SECONDS if self._due else poll_seconds
        known = [wait for wait in (horizon.next_due_seconds, horizon.next_expiry_seconds) if wait is not None]
        self._look_at = self._clock() + min([longest, *(max(wait, SHORTEST_NAP_SECONDS) for wait in known)])
        if self._clock() < self._unsaid_until:
            self._look_at = min(self._look_at, self._unsaid_until)

    def look_now(self) -> None:
        """What was seen is out of date: look before anything is decided by it."""
        self._look_at = 0.0

    def expect(self, lane: Lane, *, in_seconds: float = 0.0) -> None:
        """A row of that lane becomes due after that time. Where others serve the lane, a look tells them."""
        if in_seconds > 0 or lane not in self._lanes:
            self._look_within(in_seconds)
        else:
            self._due |= self._sources(lane)

    def get(
        self,
        source: Source,
        count: int,
        *,
        asked: int,
        took_seconds: float = 0.0,
        more_in_seconds: float | None = None,
    ) -> None:
        """A claim answered with so many leases. Fewer than asked: the source is empty, and a look tells until when.

        Where it may have missed some, it is asked again when it is said to have more.
        """
        self._moved_at = self._clock()
        self.brake.note_claimed(count)
        if self._left is not None:
            self._left -= count
        if source in APART:
            if not count:
                # Another worker was faster, or nobody here may run it: then it would be so again.
                self._due.discard(source)
                self._isolation.give_way()
        elif count < asked and more_in_seconds is not None:
            self._resting_until[source] = self._clock() + max(START_SECONDS, more_in_seconds)
        elif count < asked:
            self._due.discard(source)
            if len(self._paces) > 1 and took_seconds >= SLOW_CLAIM_SECONDS:
                self._resting_until[source] = self._clock() + rest_seconds(took_seconds)
            if count:
                self._look_soon()

    def hold(self, source: Source, leases: Sequence[Lease]) -> None:
        """Leases that a claim answered with are read, and about to be handed out."""
        if leases and source.pool is None:
            self._isolation.start(leases[0].id)
        elif leases and source.pool is not None:
            size = sum(len(lease.args or "") + len(lease.kwargs or "") for lease in leases)
            self._paces[source.pool].note_bytes(size, jobs=len(leases))

    def end(self, ended: Sequence[tuple[Lease, Ending]], *, pool_of: Callable[[Lease], Pool]) -> None:
        """Leases were settled, or turned out to be lost."""
        for lease, ending in ended:
            if ending.kind is not EndingKind.RELEASE:
                self._paces[pool_of(lease)].note(ending.run_seconds + ending.settle_seconds)
            self._isolation.end(ending.id, run_seconds=ending.run_seconds)
            if ending.kind is EndingKind.RETRY:
                self._look_within(ending.delay_seconds)
            elif lease.lane in GUARDED:
                self._due |= self._sources(Lane(lease.lane))
        if ended:
            self._moved_at = self._clock()

    def give_back(self) -> None:
        """Waiting leases were given back: jobs run longer than they did."""
        for pace in self._paces.values():
            pace.slow_down(HOARD_SECONDS)

    # -- what to do ----------------------------------------------------------------------------------------

    def wants_look(self) -> bool:
        """Say whether it is time to look."""
        return self._clock() >= max(self._look_at, self._look_not_before)

    def hoards(self, waiting: int) -> bool:
        """Say whether leases wait in vain: nothing ended or began for a while, or endings are refused."""
        return waiting > 0 and (self.brake.is_on or self._clock() - self._moved_at >= HOARD_SECONDS)

    def sources(self, *, held: Counts) -> tuple[Source, ...]:
        """Return what to claim from, in turn plain and guarded lanes first.

        A job that has lost a lease waits until nothing is held, and is then held alone. After it, other work
        gets as much time as it took, and after a wait in vain many times as much.
        """
        self._laned_first = not self._laned_first
        self._weigh_the_wait(sum(held.values()))
        return self._open(held)

    def room(self, source: Source, *, held: Counts) -> int:
        """Return how many leases to ask for: none in advance from a guarded lane, none in dribs from the plain.

        At most half of what is to be held: while one half is on its way, the threads have the other.
        """
        if source.pool is None:
            target, slots, taken = 1, 1, sum(held.values())
        else:
            pace, taken = self._paces[source.pool], held[source.pool]
            target, slots = pace.target() if source.lane is Lane.PLAIN else pace.slots, pace.slots
        room = min(target - taken, max(slots, target // 2))
        if taken >= slots and room * 4 < target:
            return 0
        if self.brake.is_on:
            room = min(room, 1)
        return max(0, room if self._left is None else min(room, self._left))

    def pause(self, *, held: Counts, waiting: int) -> float:
        """Return the seconds to sleep unless the inbox wakes us: none while there is room for due work."""
        if any(self.room(source, held=held) > 0 for source in self._open(held)):
            return 0.0
        waits = [until for source, until in self._resting_until.items() if source in self._due]
        if self._due.intersection(APART):
            waits.append(self._isolation.not_before)
        if self.brake.holds:
            waits.append(self.brake.until)
        look_at = max(self._look_at, self._look_not_before)
        until = min([look_at, *(until for until in waits if until > self._clock())])
        pause = max(0.0, until - self._clock())
        return min(pause, HOARD_SECONDS) if waiting else pause

    def is_spent(self) -> bool:
        """Say whether the job count is used up."""
        return self._left is not None and self._left <= 0

    def is_empty(self) -> bool:
        """Say whether the last look, still fresh, found nothing due."""
        return not self._due and self._clock() < self._look_at

    def _weigh_the_wait(self, held: int) -> None:
        if self._alone_is_next() and not self._isolation.is_running:
            self._isolation.wait(held=held)
        else:
            self._isolation.give_way()

    def _open(self, held: Counts) -> tuple[Source, ...]:
        if self._isolation.is_running or self.brake.holds:
            return ()
        if self._alone_is_next():
            return () if sum(held.values()) else tuple(source for source in APART if source in self._due)[:1]
        order = (*GUARDED, Lane.PLAIN) if self._laned_first else (Lane.PLAIN, *GUARDED)
        candidates = (Source(lane, pool) for lane in order for pool in self._paces)
        return tuple(source for source in candidates if source in self._due and not self._rests(source))

    def _rests(self, source: Source) -> bool:
        return self._clock() < self._resting_until.get(source, 0.0)

    def _sources(self, lane: Lane) -> set[Source]:
        if lane not in self._lanes:
            return set()
        apart = {source for source in APART if source.lane is lane}
        return apart or {Source(lane, pool) for pool in self._paces}

    def _alone_is_next(self) -> bool:
        apart = self._due.intersection(APART)
        return bool(apart) and self._isolation.is_next(others_wait=len(self._due) > len(apart))

    def _end_naps(self, sources: Iterable[Source]) -> None:
        """Claim again at once, but from a source that rests for long, since a claim of it takes long."""
        for source in sources:
            if self._resting_until.get(source, 0.0) <= self._clock() + MOMENT_SECONDS:
                self._resting_until.pop(source, None)

    def _look_soon(self) -> None:
        """Look once threads could begin. Put off once: short claims in a row must not keep putting it off."""
        if self._look_at > self._clock():
            self._look_not_before = max(self._look_not_before, self._clock() + START_SECONDS)
        self._look_at = 0.0

    def _look_within(self, seconds: float) -> None:
        self._look_at = min(self._look_at, self._clock() + seconds)
