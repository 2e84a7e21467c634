"""Look at the database from time to time: what is due and when, which leases have expired, which queues are new."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg

from .. import conf
from ..holding import boot_seconds
from ..protocol.claiming import Claimant, Turn
from ..protocol.listening import wake
from ..protocol.looking import Horizon, look
from ..protocol.taking_over import Mine, Taken
from ..takeover import Blockers, take_over_expired
from .agenda import Agenda, Source
from .finishing import Aftermath

EXPIRED_AGAIN_SECONDS = 1.0
"""Pause before another look for expired leases that could not be taken over: somebody holds the rows, or this process
still runs the jobs."""
DOUBT_SECONDS = 30.0
"""How long claims are looked for that were not heard: a lost connection may still bring about their COMMIT."""


class Lookout:
    """Tells the agenda what it sees, and the claims' marks which groups there are."""

    def __init__(
        self,
        *,
        claimant: Claimant,
        agenda: Agenda,
        turns: Mapping[Source, Turn],
        aftermath: Aftermath,
        poll_seconds: float,
        is_listening: Callable[[], bool],
        find_unheard: Callable[[psycopg.Connection[Any]], None],
        on_look: Callable[[Horizon], None],
        kept: Callable[[], Sequence[int]],
    ) -> None:
        self._claimant = claimant
        self._agenda = agenda
        self._turns = turns
        self._aftermath = aftermath
        self._longest_seconds = poll_seconds
        self._is_listening = is_listening
        self._find_unheard = find_unheard
        self._on_look = on_look
        self._kept = kept
        self._doubt_until = 0.0
        self._blockers = Blockers()
        self._from_worker = claimant.worker_id

    def poll_seconds(self) -> float:
        """Return the longest sleep, by chance shorter, so that workers do not poll in step."""
        longest = self._longest_seconds
        if not self._is_listening():
            longest = min(longest, conf.current().poll_without_listen_seconds)
        return longest * random.uniform(0.4, 1.0)

    def doubt(self) -> None:
        """Look for claims that were not heard, at once and for a while."""
        self._doubt_until = time.monotonic() + DOUBT_SECONDS
        self._agenda.look_now()

    def look(self, connection: psycopg.Connection[Any]) -> None:
        """Look, and take over what has expired."""
        if time.monotonic() < self._doubt_until:
            self._find_unheard(connection)
        asked_at = boot_seconds()
        horizon = look(connection, self._claimant, from_worker=self._from_worker)
        took = boot_seconds() - asked_at
        taken: list[Taken] = []
        if horizon.expired_ids:
            mine = Mine(self._claimant.worker_id, self._kept())
            taken = take_over_expired(connection, mine, ids=horizon.expired_ids)
            if not taken:
                self._blockers.deal(connection)
                horizon = replace(horizon, next_expiry_seconds=EXPIRED_AGAIN_SECONDS)
        self._agenda.see(horizon, poll_seconds=self.poll_seconds(), took_seconds=took)
        self._tell(connection, taken)
        self._from_worker = horizon.next_worker
        for turn in self._turns.values():
            turn.marks.know(horizon.groups)
        self._on_look(horizon)

    def _tell(self, connection: psycopg.Connection[Any], taken: Sequence[Taken]) -> None:
        self._aftermath.add_taken(taken)
        for one in taken:
            self._agenda.expect(one.verdict.lane, in_seconds=one.verdict.delay_seconds)
        if taken:
            wake(connection, sorted({one.job.queue for one in taken}))
