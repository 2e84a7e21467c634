"""Delete finished jobs that are old enough: by the settings, in batches, and on record."""

from __future__ import annotations

import time
from dataclasses import dataclass

from django.db import transaction

from . import conf
from .actors import Actor
from .protocol import operating
from .protocol.connecting import job_alias
from .protocol.operating import AuditRow
from .protocol.pruning import Pruned, prune
from .states import Outcome

BATCH = 1_000
RECORD_SECONDS = 60.0
"""Batches of so long share a row of the audit log."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What one sweep came to. `is_over`: every job was looked at."""

    looked_at: int
    deleted: int
    is_over: bool


def sweep(*, actor: Actor, reason: str, most_seconds: float, batch: int = BATCH) -> Sweep:
    """Walk the jobs by number and delete those whose retention is over.

    Each batch commits by itself; after `most_seconds` no further one begins. The first batch that deletes writes an
    audit row, so that nothing is deleted without one; the batches of the next minute share one, and so on.
    Operation keys stay spent. A job that was given up with an effect that may have happened is kept for ever.
    """
    until, after, looked, is_over = time.monotonic() + most_seconds, 0, 0, False
    record = _Record(job_alias(), conf.current(), actor=actor, reason=reason)
    try:
        while not is_over and time.monotonic() < until:
            pruned = record.prune(after_id=after, limit=batch)
            looked += pruned.looked_at
            is_over, after = pruned.looked_at < batch, pruned.last_id or after
    finally:
        record.finish()
    return Sweep(looked, record.deleted, is_over)


class _Record:
    """What a sweep has deleted, and how much of that the audit log tells already: its rows can never be deleted."""

    def __init__(self, alias: str, settings: conf.Settings, *, actor: Actor, reason: str) -> None:
        self.deleted = 0
        self._told = 0
        self._tell_at = float("-inf")
        self._alias = alias
        self._settings = settings
        self._actor = actor
        self._reason = reason

    def prune(self, *, after_id: int, limit: int) -> Pruned:
        """Delete one batch, and write an audit row with it if one is due."""
        settings = self._settings
        with transaction.atomic(using=self._alias):
            pruned = prune(
                self._alias,
                after_id=after_id,
                limit=limit,
                retention_seconds=settings.retention_seconds,
                dead_retention_seconds=settings.dead_retention_seconds,
            )
            deleted = self.deleted + pruned.deleted
            tells = deleted > self._told and time.monotonic() >= self._tell_at
            if tells:
                _audit(self._alias, settings, actor=self._actor, reason=self._reason, deleted=deleted - self._told)
        self.deleted = deleted
        if tells:
            self._told, self._tell_at = deleted, time.monotonic() + RECORD_SECONDS
        return pruned

    def finish(self) -> None:
        """Write what was not told."""
        left, self._told = self.deleted - self._told, self.deleted
        if left:
            _audit(self._alias, self._settings, actor=self._actor, reason=self._reason, deleted=left)


def _audit(alias: str, settings: conf.Settings, *, actor: Actor, reason: str, deleted: int) -> None:
    row = AuditRow(
        verb="prune",
        target_kind="job",
        outcome=str(Outcome.APPLIED),
        actor_id=actor.id,
        actor_name=operating.text(actor.name),
        reason=operating.text(reason),
        params={
            "retention_seconds": settings.retention_seconds,
            "dead_retention_seconds": settings.dead_retention_seconds,
        },
        facts={"deleted": deleted},
    )
    operating.audit(alias, [row])
