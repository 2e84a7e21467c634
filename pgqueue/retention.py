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
    """Walk the jobs by number, delete those whose retention is over, and write one audit row if there were any.

    Each batch commits by itself; after `most_seconds` no further one begins. Operation keys stay spent. A job that was
    given up with an effect that may have happened is kept for ever.
    """
    settings, alias = conf.current(), job_alias()
    until, after, looked, deleted, is_over = time.monotonic() + most_seconds, 0, 0, 0, False
    while not is_over and time.monotonic() < until:
        pruned = prune(
            alias,
            after_id=after,
            limit=batch,
            retention_seconds=settings.retention_seconds,
            dead_retention_seconds=settings.dead_retention_seconds,
        )
        looked, deleted = looked + pruned.looked_at, deleted + pruned.deleted
        is_over, after = pruned.looked_at < batch, pruned.last_id or after
    if deleted:
        _record(alias, actor=actor, reason=reason, deleted=deleted)
    return Sweep(looked, deleted, is_over)


def _record(alias: str, *, actor: Actor, reason: str, deleted: int) -> None:
    settings = conf.current()
    row = AuditRow(
        verb="prune",
        target_kind="job",
        target_id="",
        outcome=str(Outcome.APPLIED),
        actor_id=actor.id,
        actor_name=operating.text(actor.name),
        reason=operating.text(reason),
        ticket="",
        version_seen=None,
        version_found=None,
        version_after=None,
        state_found=None,
        idempotency_key=None,
        params={
            "retention_seconds": settings.retention_seconds,
            "dead_retention_seconds": settings.dead_retention_seconds,
        },
        facts={"deleted": deleted},
    )
    with transaction.atomic(using=alias):
        operating.audit(alias, row)
