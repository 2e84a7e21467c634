"""What trips brought and nobody has read: leases count as held from the answer on, and are read when there is time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psycopg

from ..protocol.claiming import Haul, Lease
from .agenda import Source
from .pace import Pool

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unread:
    """An answer, to which claim, and when that was sent, in boot seconds."""

    source: Source
    haul: Haul
    asked_at: float


class Hauls:
    """The dispatcher sends the next endings and claims first: reading takes longer than the server needs to begin."""

    def __init__(
        self, hand_out: Callable[[Source, list[Lease], float], None], *, on_unread: Callable[[], None]
    ) -> None:
        self._hand_out = hand_out
        self._on_unread = on_unread
        self._unread: list[Unread] = []

    def __len__(self) -> int:
        return sum(len(one.haul) for one in self._unread)

    def add(self, source: Source, haul: Haul, *, asked_at: float) -> None:
        """Take in an answer."""
        self._unread.append(Unread(source, haul, asked_at))

    def added_to(self, held: Mapping[Pool, int]) -> Mapping[Pool, int]:
        """Return how many leases are held for each pool, given how many of those that were read."""
        counted = dict(held)
        for one in self._unread:
            if one.source.pool is not None:
                counted[one.source.pool] += len(one.haul)
        return counted

    def unpack(self) -> None:
        """Read all and hand it out. What cannot be read is as if it had never been heard."""
        unread, self._unread = self._unread, []
        for one in unread:
            try:
                leases = one.haul.read()
            except (psycopg.Error, OSError) as error:
                logger.warning("claim.unread count=%d error=%s", len(one.haul), type(error).__name__)
                self._on_unread()
            else:
                self._hand_out(one.source, leases, one.asked_at)
