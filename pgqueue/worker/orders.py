"""Why a worker process is to end: it was told to, its leases ran out, or a run in it can be stopped by nothing."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from ..holding import Holdings
from .inbox import Signal

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Orders:
    """What was said so far. Nothing takes it back."""

    told_to_stop: bool = False
    ran_out: bool = False
    has_stuck: bool = False

    def read(self, signals: Collection[Signal], holdings: Holdings, *, worker_id: int) -> bool:
        """Take in signals, and say whether this process is to drain."""
        self.told_to_stop |= Signal.STOP in signals
        # Asked here too: after a freeze the dispatcher may be the first to wake, with endings to be refused.
        if not self.ran_out and (Signal.LEASES_RAN_OUT in signals or holdings.have_run_out()):
            logger.error("worker.stopping reason=leases_ran_out worker=%d", worker_id)
            self.ran_out = True
        if not self.has_stuck and Signal.STUCK in signals:
            logger.error("worker.stopping reason=stuck worker=%d", worker_id)
            self.has_stuck = True
        return self.told_to_stop or self.ran_out or self.has_stuck
