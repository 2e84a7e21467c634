"""What this process holds: its leases, and until when each is surely its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import psycopg

from . import conf
from .protocol.claiming import Lease
from .protocol.leasing import Renewal
from .protocol.settling import Ending

LATE_SECONDS = 600.0
"""How long endings whose leases have run out are kept: others may not have the jobs yet."""
LONGEST_SILENCE = 2 / 3
"""Share of a lease without a heartbeat after which nothing more is claimed."""
LOST_AGAIN_SECONDS = 600.0
"""Time between two log lines that say that the same lease is lost."""


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
    timed_out: bool = False
    """Its run has taken longer than its limit."""
    has_effects: bool = False
    """Its run has called an effect."""
    awaited: psycopg.Connection[Any] | None = None
    """The connection on which its run waits for the answer to a COMMIT."""
    lend: Callable[[], AbstractContextManager[psycopg.Connection[Any]]] | None = None
    """Where its effects are written: in a test its own connection; None is one of the queue's own."""
    ended_at: float | None = None
    """Boot time at which its run was over, or it was to be given back; its ending may still be unwritten."""
    left: bool = False
    """It is renewed no more, because its run is over and its ending could not be written for a lease."""
    told_lost_at: float | None = None
    """Boot time of the last log line that said that it is lost."""

    def end(self) -> None:
        """Note that the run is over: from now on only its ending keeps the job."""
        if self.ended_at is None:
            self.ended_at = boot_seconds()

    def has_ended_for(self, seconds: float) -> bool:
        """Return whether the run has been over for longer than that."""
        return self.ended_at is not None and boot_seconds() - self.ended_at > seconds

    def may_be_lost(self) -> bool:
        """Say whether the lease is lost, or may have run out since it was last confirmed."""
        return self.lost or boot_seconds() >= self.safe_until

    def seconds_left(self) -> float:
        """Return for how long the lease is surely ours."""
        return max(0.0, self.safe_until - boot_seconds())

    def stop_awaiting(self) -> None:
        """Note that the COMMIT was answered, or failed."""
        self.awaited = None

    def limit_seconds(self) -> float | None:
        """Return how long one run may take: the job's own limit, else its settings', else None."""
        return self.lease.max_run_seconds or self.settings().max_run_seconds

    def settings(self) -> conf.Settings:
        """Return the settings for this job."""
        return conf.of(queue=self.lease.queue, task=self.lease.task)


class Holdings:
    """The leases of a worker process; shared by its dispatcher, its heartbeat and its threads."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._held: dict[int, Held] = {}
        self._heard_at = self._heard_since = boot_seconds()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, leases: Iterable[Lease], *, asked_at: float) -> list[Held]:
        """Take in leases whose claim was sent at `asked_at`, in boot seconds."""
        added = [Held(lease, safe_until=asked_at + self._lease_seconds) for lease in leases]
        with self._lock:
            for held in added:
                if (before := self._held.get(held.lease.id)) is not None:
                    before.lost = True
                self._held[held.lease.id] = held
        return added

    def drop(self, endings: Iterable[Ending]) -> list[tuple[Lease, Ending]]:
        """Forget the leases of endings that were written or refused; return those that were held, each with its ending.

        A later lease of the same job is another one, and stays.
        """
        dropped: list[tuple[Lease, Ending]] = []
        with self._lock:
            for ending in endings:
                held = self._held.get(ending.id)
                if held is not None and held.lease.fence == ending.fence:
                    del self._held[ending.id]
                    dropped.append((held.lease, ending))
        return dropped

    def fences(self) -> dict[int, int]:
        """Return job id and fence of everything held."""
        with self._lock:
            return {id: held.lease.fence for id, held in self._held.items()}

    def leases(self) -> list[Lease]:
        """Return everything held."""
        with self._lock:
            return [held.lease for held in self._held.values()]

    def renewable(self) -> dict[int, Held]:
        """Return what a heartbeat asks for, by job id: what is not known to be lost, and not left to others.

        A run that is over is renewed for one more lease. If its ending cannot be written in that time, its lease runs
        out, and any worker takes the job over.
        """
        with self._lock:
            for held in self._held.values():
                held.left = held.left or (self._is_left(held) and not held.may_be_lost())
            return {id: held for id, held in self._held.items() if not (held.lost or self._is_left(held))}

    def kept(self) -> list[int]:
        """Return the ids of the jobs that this process does not take over from itself.

        It runs them, or has an ending of theirs that is sent again: running such a job anew would only be right if that
        ending could never be written. Other workers need not wait for that.
        """
        longest = self._lease_seconds + LATE_SECONDS
        with self._lock:
            return [id for id, held in self._held.items() if not (self._is_left(held) and held.has_ended_for(longest))]

    def vainly_awaited(self) -> list[Held]:
        """Return what waits for the answer to a COMMIT though its lease may have run out."""
        with self._lock:
            return [held for held in self._held.values() if held.awaited is not None and held.may_be_lost()]

    def have_run_out(self) -> bool:
        """Say whether something is held, and every lease may have run out: this process was frozen, or cut off.

        A lease that was lost while it was valid, as when an operator breaks it, tells nothing about the process. Nor
        does one that is renewed no more because its run is over, or one whose run waits for the answer to a COMMIT:
        that transaction itself keeps it from being renewed.
        """
        with self._lock:
            kept = (held for held in self._held.values() if not (held.lost or held.left or held.awaited is not None))
            first = next(kept, None)
            return first is not None and first.may_be_lost() and all(held.may_be_lost() for held in kept)

    def are_all_lost(self) -> bool:
        """Return whether nothing held is surely still held, or only by runs that were over a lease ago."""
        with self._lock:
            return all(held.may_be_lost() or self._is_left(held) for held in self._held.values())

    def _is_left(self, held: Held) -> bool:
        """Return whether the ending could not be written for a lease in which the server was within reach.

        After a freeze or an outage the ending gets its chance first.
        """
        return held.has_ended_for(self._lease_seconds) and self.reachable_seconds() > self._lease_seconds

    def is_cut_off(self) -> bool:
        """Say whether no heartbeat got through for so long that what is claimed now might not be kept."""
        return boot_seconds() - self._heard_at > self._lease_seconds * LONGEST_SILENCE

    def reachable_seconds(self) -> float:
        """Return for how long heartbeats have got through without a long silence; 0 while they do not."""
        return 0.0 if self.is_cut_off() else boot_seconds() - self._heard_since

    def hear(self, *, asked_at: float) -> None:
        """Note that a heartbeat sent at `asked_at` got through."""
        if self.is_cut_off():
            self._heard_since = asked_at
        self._heard_at = asked_at

    def confirm(self, asked: Mapping[int, Held], renewal: Renewal, *, asked_at: float) -> list[Lease]:
        """Note what a heartbeat sent at `asked_at` heard of the leases it asked for.

        Return those that are lost and still held here, each once, then from time to time.
        """
        for id in renewal.renewed:
            asked[id].safe_until = asked_at + self._lease_seconds
        for id in renewal.stop_requested:
            asked[id].stop_requested = True
        for id in renewal.lost:
            # Of one that has run out, no more is known than its time says: the process was late for all of them.
            if not asked[id].may_be_lost():
                asked[id].lost = True
        return self._to_be_told(asked[id] for id in sorted(renewal.lost))

    def _to_be_told(self, lost: Iterable[Held]) -> list[Lease]:
        now = boot_seconds()
        told: list[Lease] = []
        with self._lock:
            for held in lost:
                is_news = held.told_lost_at is None or now - held.told_lost_at > LOST_AGAIN_SECONDS
                if is_news and self._held.get(held.lease.id) is held:
                    held.told_lost_at = now
                    told.append(held.lease)
        return told
