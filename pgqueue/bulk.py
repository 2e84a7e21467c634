"""One verb on many jobs: a set that is frozen first, then acted on row by row, each under its own lock and guards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from .operations import Actor, act
from .protocol import freezing, operating
from .protocol.connecting import job_alias
from .states import Outcome
from .verbs import VERBS, Verb

CAP = 10_000
"""Most jobs of one bulk action."""
CHUNK = 500
LONGEST_CHUNK_SECONDS = 8.0
"""A request acts on so many rows, or for so long, and leaves the rest to the next."""
ROW_WAIT_SECONDS = 0.05
"""A row that somebody holds is `busy`; the others do not wait for it."""

BULK_PERMISSION = "bulk_job"
_HIGHEST_LEVEL = 2


def bulk_verbs() -> list[Verb]:
    """Return the verbs that may be used on many jobs: none that needs the job's number typed, or inputs of its own."""
    return [verb for verb in VERBS.values() if verb.kind == "job" and verb.level == _HIGHEST_LEVEL and not verb.needs]


def freeze(verb: str, seen: Sequence[tuple[int, int]], *, actor: Actor, filter: str) -> UUID:
    """Freeze (job, version) pairs for a verb and return the bulk action's id. Those beyond `CAP` are left out."""
    chosen = sorted(seen)[:CAP]
    who = (actor.id, operating.text(actor.name))
    return freezing.freeze(
        job_alias(), verb=verb, seen=chosen, actor=who, filter=operating.text(filter), capped=len(seen) > CAP
    )


def start(id: UUID, *, reason: str, ticket: str, spread_seconds: float) -> bool:
    """Give a frozen bulk action its reason, so that it can run; False when somebody did before."""
    reason, ticket = operating.text(reason), operating.text(ticket)
    return freezing.start(job_alias(), id, reason=reason, ticket=ticket, spread_seconds=spread_seconds)


def stop(id: UUID) -> bool:
    """Stop between two rows; False when it does not run."""
    return freezing.stop(job_alias(), id)


def run_some(bulk: Any, *, actor: Actor) -> int:
    """Act on the next rows of a started bulk action and return how many have their outcome now.

    Every row is an action of its own, with its audit row. Its key is the bulk action's and the job's: rows that a
    lost request had already changed are found out as replays and count as applied, whoever goes on with it.
    """
    alias, until, done = job_alias(), time.monotonic() + LONGEST_CHUNK_SECONDS, 0
    for item in freezing.items(alias, bulk.pk, limit=CHUNK):
        freezing.note(alias, bulk.pk, item.job_id, _act(bulk, item, actor))
        done += 1
        if time.monotonic() > until:
            break
    freezing.finish(alias, bulk.pk)
    return done


def _act(bulk: Any, item: freezing.Item, actor: Actor) -> dict[str, Any]:
    params = {}
    if bulk.verb == "requeue" and bulk.spread_seconds:
        params["delay_seconds"] = round(bulk.spread_seconds * (item.position - 1) / bulk.size, 3)
    action = act(
        bulk.verb,
        item.job_id,
        version_seen=item.version_seen,
        actor=actor,
        reason=bulk.reason,
        ticket=bulk.ticket,
        params=params,
        idempotency_key=f"bulk:{bulk.pk}:{item.job_id}",
        wait_seconds=ROW_WAIT_SECONDS,
    )
    return {
        "outcome": str(Outcome.APPLIED if action.outcome == Outcome.REPLAYED else action.outcome),
        "version_found": action.version_found,
        "state_found": action.state_found,
        "audit_id": action.audit_id,
    }
