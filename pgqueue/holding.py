"""What this process holds: its leases, and until when each is surely its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from .protocol.claiming import Lease
from .protocol.leasing import Renewal


def boot_seconds() -> float:
    """Return seconds since boot, time asleep included: a suspended machine's leases run out meanwhile."""
    return time.clock_gettime(_BOOT_CLOCK)


_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@dataclass(slots=True, eq=False)
class Held:
    """One lease and what the heartbeat has heard about it."""

    lease: Lease
    safe_until: float
    """Boot time until which the database has surely not given the job to anybody else."""
    lost: bool = False
    stop_requested: bool = False

    def may_be_lost(self) -> bool:
        """Say whether the lease is lost, or may have run out since it was last confirmed."""
        return self.lost or boot_seconds() >= self.safe_until


class Holdings:
    """The leases of a worker process; shared by its dispatcher, its heartbeat and its threads."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._held: dict[int, Held] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, leases: Iterable[Lease], *, asked_at: float) -> list[Held]:
        """Take in leases whose claim was sent at `asked_at`, in boot seconds."""
        added = [Held(lease, safe_until=asked_at + self._lease_seconds) for lease in leases]
        with self._lock:
            self._held.update((held.lease.id, held) for held in added)
        return added

    def drop(self, id: int) -> Held | None:
        """Forget a lease that was settled or lost."""
        with self._lock:
            return self._held.pop(id, None)

    def fences(self) -> dict[int, int]:
        """Return job id and fence of everything held."""
        with self._lock:
            return {id: held.lease.fence for id, held in self._held.items()}

    def confirm(self, renewal: Renewal, *, asked_at: float) -> int:
        """Note what a heartbeat sent at `asked_at` heard; return how many leases ran out while nobody renewed them."""
        ran_out = 0
        for id in renewal.renewed:
            self._update(id, lambda held: setattr(held, "safe_until", asked_at + self._lease_seconds))
        for id in renewal.stop_requested:
            self._update(id, lambda held: setattr(held, "stop_requested", True))
        for id in renewal.lost:
            held = self._update(id, lambda held: setattr(held, "lost", True))
            ran_out += held is not None and held.safe_until <= asked_at
        return ran_out

    def _update(self, id: int, change: Callable[[Held], None]) -> Held | None:
        with self._lock:
            held = self._held.get(id)
            if held is not None:
                change(held)
            return held
