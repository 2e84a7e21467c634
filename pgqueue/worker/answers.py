"""What trips brought and nobody has read: counted from the answer on, and read when there is time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..foreign import told
from ..logs import get_logger
from ..protocol.claiming import Haul, Lease
from ..protocol.settling import Ending, Settled
from ..server_errors import DATABASE_ERRORS
from .agenda import Source
from .pace import Pool

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Unread:
    """An answer, to which claim, and when that was sent, in boot seconds."""

    source: Source
    haul: Haul
    asked_at: float


class Answers:
    """The dispatcher sends the next endings and claims first: reading takes longer than the server needs to begin.

    Until then leases that were claimed count as held, and those whose endings were written do not.
    """

    def __init__(
        self,
        *,
        forget: Callable[[Sequence[Ending], Settled], object],
        hand_out: Callable[[Source, list[Lease], float], None],
        on_unread: Callable[[], None],
    ) -> None:
        self._forget = forget
        self._hand_out = hand_out
        self._on_unread = on_unread
        self._written: list[tuple[Sequence[Ending], Settled]] = []
        self._claimed: list[Unread] = []

    def count_claimed(self) -> int:
        """Return how many leases were claimed and are not handed out."""
        return sum(len(one.haul) for one in self._claimed)

    def ended_ids(self) -> set[int]:
        """Return the ids of the jobs whose endings were written and whose leases are not forgotten."""
        return {ending.id for endings, _ in self._written for ending in endings}

    def added_to(self, held: Mapping[Pool, int]) -> Mapping[Pool, int]:
        """Return how many leases are held for each pool, given how many of those that were handed out."""
        counted = dict(held)
        for one in self._claimed:
            if one.source.pool is not None:
                counted[one.source.pool] += len(one.haul)
        return counted

    def add_written(self, endings: Sequence[Ending], settled: Settled) -> None:
        """Take in an answer that says of all endings that they were written."""
        self._written.append((endings, settled))

    def add_claimed(self, source: Source, haul: Haul, *, asked_at: float) -> None:
        """Take in the answer to a claim."""
        self._claimed.append(Unread(source, haul, asked_at))

    def read(self) -> None:
        """Forget what ended, then hand out what was claimed: it may be the same job anew.

        A claim that cannot be read is as if it had never been heard.
        """
        written, self._written = self._written, []
        for endings, settled in written:
            self._forget(endings, settled)
        claimed, self._claimed = self._claimed, []
        for one in claimed:
            try:
                leases = one.haul.read()
            except DATABASE_ERRORS as error:
                logger.warning("claim.unread count=%d %s", len(one.haul), told(error))
                self._on_unread()
            else:
                self._hand_out(one.source, leases, one.asked_at)
