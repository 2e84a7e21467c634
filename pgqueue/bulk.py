"""One verb on many jobs: a set is frozen first, then acted on by chunks, each row under its own lock and guards."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.apps import apps
from django.contrib.auth import get_user_model
from django.db import IntegrityError, OperationalError, transaction
from django.db.models import QuerySet

from . import conf, notifying
from .foreign import told
from .logs import get_logger
from .operations import Action, Actor, Request, act_on_locked, is_busy, perform, tell
from .protocol import approving, freezing, operating
from .protocol.connecting import job_alias
from .states import Outcome
from .verbs import VERBS, Verb

logger = get_logger(__name__)

CAP = 10_000
"""Most jobs of one bulk action."""
CHUNK = 200
"""Rows of one transaction."""
MOST_AT_ONCE = 500
"""A request acts on so many rows; larger sets are for workers, in the background."""
LONGEST_SECONDS = 8.0
"""A request goes on for so long, and leaves the rest to the next."""
ROW_WAIT_SECONDS = 0.05
"""What somebody holds is `busy`; the other rows do not wait for it."""

MOST_BULKS = 20
"""So many run at a time; others wait until one of them has ended."""

BULK_PERMISSION = "bulk_job"


def bulk_verbs() -> list[Verb]:
    """Return the verbs that may be used on many jobs: none that needs the job's number typed, or inputs of its own."""
    return [verb for verb in VERBS.values() if verb.takes_many and not verb.needs]


def freeze(verb: str, rows: QuerySet[Any], *, actor: Actor, filter: str) -> UUID | None:
    """Freeze the jobs that a query of them finds, each with its version, for a verb; return the bulk action's id.

    Those beyond `CAP` are left out. None where the query finds nothing: then there is no bulk action.
    """
    who = (actor.id, operating.text(actor.name))
    return freezing.freeze(job_alias(), rows, verb=verb, actor=who, filter=operating.text(filter), cap=CAP)


def start(id: UUID, *, actor: Actor, reason: str, ticket: str, spread_seconds: float) -> bool:
    """Give a frozen bulk action its reason, so that it runs; False when somebody did before.

    Workers go on with it in the background as long as `actor`, a user of Django's, may do so.
    """
    return freezing.start(
        job_alias(),
        id,
        actor=(actor.id, operating.text(actor.name)),
        reason=operating.text(reason),
        ticket=operating.text(ticket),
        spread_seconds=spread_seconds,
    )


def hint() -> None:
    """Tell workers that a bulk action was started, once the caller has committed; they look now and then too."""
    notifying.hint_bulk(job_alias())


def stop(id: UUID, *, actor: Actor) -> bool:
    """Stop after the chunk under way; False when it does not run."""
    return freezing.stop(job_alias(), id, by=operating.text(actor.name) or "-")


def run_in_background() -> int:
    """Run a chunk of each bulk action that runs, as whoever started it; return how many rows have their outcome now.

    One whose starter may no longer do what it does is stopped. Where users are not Django's, nothing is done.
    """
    if not apps.is_installed("django.contrib.auth"):
        return 0
    return sum(_go_on(started) for started in freezing.running(job_alias(), limit=MOST_BULKS))


def _go_on(started: freezing.Started) -> int:
    """Run a chunk. Whatever goes wrong with one bulk action, the others go on."""
    try:
        actor = starter_of(started.verb, started.started_by_id)
        if actor is not None:
            return run_chunk(started.id, actor=actor)
        if freezing.stop(job_alias(), started.id, by=""):
            logger.warning("bulk.stopped bulk=%s reason=not_permitted", started.id)
    except Exception as error:
        logger.warning("bulk.failed bulk=%s %s", started.id, told(error))
    return 0


def starter_of(verb: str, started_by_id: str | None) -> Actor | None:
    """Return who started a bulk action, with today's permissions; None for somebody who may not go on.

    Its rows are acted on in that name alone, whoever has it go on.
    """
    known: Any = get_user_model()._default_manager
    user = known.filter(pk=started_by_id).first()
    if user is None or not user.is_active or not user.has_perm(f"pgqueue.{BULK_PERMISSION}"):
        return None
    actor = Actor.of(user)
    return actor if actor.may(VERBS[verb]) else None


def may_touch_all(id: UUID, verb: str, *, actor: Actor) -> bool:
    """Return whether somebody may use the verb on every row of a bulk action that has no outcome yet."""
    groups = freezing.preview(job_alias(), id)
    return all(group.queue is None or actor.may_touch(VERBS[verb], group.queue, group.task) for group in groups)


def run_some(id: UUID, *, actor: Actor) -> int:
    """Act on the next rows of a started bulk action, chunk by chunk, and return how many have their outcome now."""
    until, done = time.monotonic() + LONGEST_SECONDS, 0
    while done < MOST_AT_ONCE and time.monotonic() < until:
        chunk = run_chunk(id, actor=actor, limit=min(CHUNK, MOST_AT_ONCE - done))
        done += chunk
        if not chunk:
            break
    return done


def run_chunk(id: UUID, *, actor: Actor, limit: int = CHUNK) -> int:
    """Act on the next rows in one transaction, and return how many have their outcome now.

    None while somebody else runs a chunk of the same bulk action. A chunk that cannot be written as one, for a row that
    meets another session or a unique key, is done row by row.
    """
    alias, actor = job_alias(), replace(actor, name=operating.text(actor.name))
    try:
        return _run_together(alias, id, actor, limit)
    except OperationalError as error:
        if not is_busy(error):
            raise
    except IntegrityError:
        pass
    return _run_one_by_one(alias, id, actor, limit)


def _run_together(alias: str, id: UUID, actor: Actor, limit: int) -> int:
    with transaction.atomic(using=alias, durable=True):
        operating.begin(alias, lock_timeout_seconds=ROW_WAIT_SECONDS)
        bulk = freezing.lock(alias, id)
        if bulk is None:
            return 0
        items = freezing.items(alias, id, limit=limit)
        approved_by = _approved_by(alias, id, bulk.verb)
        requests = [_request(id, bulk, item, actor, approved_by) for item in items]
        actions = act_on_locked(alias, requests) if requests else []
        freezing.note(alias, id, [_result(item, action) for item, action in zip(items, actions, strict=True)])
        if len(items) < limit:
            freezing.finish(alias, id)
    for request, action in zip(requests, actions, strict=True):
        tell(alias, request, action)
    return len(items)


def _run_one_by_one(alias: str, id: UUID, actor: Actor, limit: int) -> int:
    """Act on rows one by one. A stop comes between two."""
    for done in range(limit):
        bulk = freezing.lock(alias, id)
        items = freezing.items(alias, id, limit=1)
        if bulk is None or not items:
            return done
        request = _request(id, bulk, items[0], actor, _approved_by(alias, id, bulk.verb))
        action = perform(replace(request, wait_seconds=ROW_WAIT_SECONDS))
        freezing.note(alias, id, [_result(items[0], action)])
    return limit


def _approved_by(alias: str, id: UUID, verb: str) -> str | None:
    """Return who has approved a set of a verb that needs that; None where nobody has, or nobody needs to."""
    return approving.of_bulk(alias, id, verb) if verb in conf.current().two_person_verbs else None


def _request(id: UUID, bulk: freezing.Running, item: freezing.Item, actor: Actor, approved_by: str | None) -> Request:
    """Return what is asked of one row. Its key is the bulk action's and the job's.

    So a row that was acted on and not noted is found out as a replay, whoever goes on.
    """
    params = {}
    if bulk.verb == "requeue" and bulk.spread_seconds:
        params["delay_seconds"] = round(bulk.spread_seconds * (item.position - 1) / bulk.size, 3)
    return Request(
        verb=VERBS[bulk.verb],
        target_id=item.job_id,
        version_seen=item.version_seen,
        actor=actor,
        reason=bulk.reason,
        ticket=bulk.ticket,
        params=params,
        idempotency_key=f"bulk:{id}:{item.job_id}",
        approved_by=approved_by,
    )


def _result(item: freezing.Item, action: Action) -> freezing.Result:
    return freezing.Result(
        job_id=item.job_id,
        outcome=str(Outcome.APPLIED if action.outcome == Outcome.REPLAYED else action.outcome),
        version_found=action.version_found,
        state_found=action.state_found,
        audit_id=action.audit_id,
    )
