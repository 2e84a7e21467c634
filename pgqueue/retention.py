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
from .protocol.pruning import prune
from .states import Outcome

BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Sweep:
    """What one sweep came to. `is_over`: every job was looked at."""

    looked_at: int
    deleted: int
    is_over: bool


def sweep(*, actor: Actor, reason: str, most_seconds: float, batch: int = BATCH) -> Sweep:
    """Walk the jobs by number and delete those whose retention is over.

    Each batch commits by itself, with an audit row of what it deleted; after `most_seconds` no further one begins.
    Operation keys stay spent. A job that was given up with an effect that may have happened is kept for ever.
    """
    settings, alias = conf.current(), job_alias()
    until, after, looked, deleted, is_over = time.monotonic() + most_seconds, 0, 0, 0, False
    while not is_over and time.monotonic() < until:
        with transaction.atomic(using=alias):
            pruned = prune(
                alias,
                after_id=after,
                limit=batch,
                retention_seconds=settings.retention_seconds,
                dead_retention_seconds=settings.dead_retention_seconds,
            )
            if pruned.deleted:
                _record(alias, settings, actor=actor, reason=reason, deleted=pruned.deleted)
        looked, deleted = looked + pruned.looked_at, deleted + pruned.deleted
        is_over, after = pruned.looked_at < batch, pruned.last_id or after
    return Sweep(looked, deleted, is_over)


def _record(alias: str, settings: conf.Settings, *, actor: Actor, reason: str, deleted: int) -> None:
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
