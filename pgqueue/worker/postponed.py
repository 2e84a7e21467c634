"""Endings that the server refused, each with a backoff of its own: they must not keep others waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from ..backoff import delay_seconds, is_told
from ..foreign import told
from ..logs import get_logger
from ..protocol.settling import Ending, EndingKind, Settled
from .brake import Brake

logger = get_logger(__name__)

RETRY_BASE_SECONDS = 0.5
RETRY_CAP_SECONDS = 10.0


@dataclass(slots=True)
class _Refused:
    ending: Ending
    refusals: int
    due_at: float


class Postponed:
    """Keeps refused endings until they are written, or turn out to have lost their jobs."""

    def __init__(self, brake: Brake | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._brake = brake or Brake(clock=clock)
        self._clock = clock
        self._refused: dict[int, _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def ids(self) -> set[int]:
        """Return the ids of the jobs whose endings wait here."""
        return set(self._refused)

    def is_concerned(self, settled: Settled) -> bool:
        """Return whether what became of endings matters here: some wait, some were refused, or claims are held back."""
        return bool(self._refused or settled.refused or self._brake.is_on)

    def take(self, over: Sequence[Ending], settled: Settled) -> None:
        """Take in what became of endings; `over` are those that need not be sent again."""
        self.forget(over)
        if any(ending.kind is not EndingKind.RELEASE and ending.id in settled.written for ending in over):
            self._brake.note_written()
        self._brake.note_refused(sum(one.id not in self._refused for one, _ in settled.refused))
        self._brake.note_refused(sum(one.id not in self._refused for one in settled.untried))
        # What is here and locked by somebody has a pause of its own too: it must not be sent again and again.
        locked = [ending for ending in settled.busy if ending.id in self._refused]
        self.add(settled.refused, untried=[*settled.untried, *locked])

    def add(self, refused: Iterable[tuple[Ending, Exception]], *, untried: Iterable[Ending] = ()) -> None:
        """Take in endings that the server has refused once more, and those that were not tried after them."""
        for ending, error in refused:
            refusals = self._refusals(ending) + 1
            if is_told(refusals):
                facts = (ending.id, ending.fence, ending.kind, refusals, told(error))
                logger.error("settle.unwritable job=%d fence=%d kind=%s refusals=%d %s", *facts)
            self._keep(ending, refusals)
        for ending in untried:
            self._keep(ending, self._refusals(ending))

    def hurry(self) -> None:
        """Have all of them sent again now: the process is about to end."""
        for one in self._refused.values():
            one.due_at = self._clock()

    def due(self) -> list[Ending]:
        """Return what is to be sent again now. What was refused least often goes first, so that each has its turn."""
        now = self._clock()
        due = [one for one in self._refused.values() if one.due_at <= now]
        return [one.ending for one in sorted(due, key=attrgetter("refusals"))]

    def _refusals(self, ending: Ending) -> int:
        before = self._refused.get(ending.id)
        return 0 if before is None or before.ending.fence != ending.fence else before.refusals

    def _keep(self, ending: Ending, refusals: int) -> None:
        wait = delay_seconds(max(1, refusals), base_seconds=RETRY_BASE_SECONDS, cap_seconds=RETRY_CAP_SECONDS)
        self._refused[ending.id] = _Refused(ending, refusals, self._clock() + wait)

    def forget(self, endings: Iterable[Ending]) -> None:
        """Forget endings that were written, or that lost their jobs."""
        for ending in endings:
            kept = self._refused.get(ending.id)
            if kept is not None and kept.ending.fence == ending.fence:
                del self._refused[ending.id]

    def pause(self, longest: float) -> float:
        """Return how long to sleep at most until one is due."""
        due = [one.due_at - self._clock() for one in self._refused.values()]
        return max(0.0, min([longest, *due]))
