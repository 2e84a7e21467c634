"""Why a worker process is to end: it was told to, it cannot work any more, or a run in it can be stopped by nothing."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ..holding import Holdings
from ..logs import get_logger
from .inbox import UNFIT, Signal

logger = get_logger(__name__)


@dataclass(slots=True)
class Orders:
    """What was said so far. Nothing takes it back."""

    told_to_stop: bool = False
    has_stuck: bool = False
    reasons: set[str] = field(default_factory=set)
    """Why this process cannot work any more."""

    @property
    def is_unfit(self) -> bool:
        """Whether this process cannot work any more."""
        return bool(self.reasons)

    def read(self, signals: Collection[Signal], holdings: Holdings, *, worker_id: int) -> bool:
        """Take in signals, and say whether this process is to drain."""
        self.told_to_stop |= Signal.STOP in signals
        for signal in UNFIT.intersection(signals):
            self.give_up(signal.value, worker_id=worker_id)
        # Asked here too: after a freeze the dispatcher may be the first to wake, with endings to be refused.
        if holdings.have_run_out():
            self.give_up(Signal.LEASES_RAN_OUT.value, worker_id=worker_id)
        if not self.has_stuck and Signal.STUCK in signals:
            logger.error("worker.stopping reason=stuck worker=%d", worker_id)
            self.has_stuck = True
        return self.told_to_stop or self.is_unfit or self.has_stuck

    def give_up(self, reason: str, *, worker_id: int, count: int = 0) -> None:
        """Note why this process cannot work any more; say each reason once."""
        if reason not in self.reasons:
            self.reasons.add(reason)
            logger.error("worker.stopping reason=%s worker=%d count=%d", reason, worker_id, count)
