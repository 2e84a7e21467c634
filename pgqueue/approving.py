"""Verbs that a second person must approve: asked for by one, done when another one approves, in one transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db import transaction

from . import conf, notifying
from .acting import Action, Found, Request, audited, conclude, find_replays, refuse_another
from .actors import Actor, places
from .protocol import approving, freezing, operating
from .protocol.approving import BULK
from .states import Outcome
from .verb_reasons import why_not_decided, why_stale
from .verbs import APPROVE, VERBS, Verb

NUMBERED = ("job", "worker")
"""Kinds whose targets have numbers."""


def decide(alias: str, found: Found) -> Action:
    """Do what was asked for of a locked target, have it wait for a second person, or do what another one asked for."""
    request = found.request
    if found.replay is None and found.facts is not None:
        if request.needs_approval():
            return _ask(alias, found)
        if request.verb.name == APPROVE:
            return _approve(alias, found, found.facts)
    return conclude(alias, [found])[0]


def _ask(alias: str, found: Found) -> Action:
    """Have a request wait where it would apply now: it is done, and rolled back."""
    request = found.request
    asked = approving.find(alias, request.idempotency_key, request.params)
    if asked is not None:
        refuse_another(request, asked[1])
        return replace(_told(alias, replace(found, replay=asked[1]), Outcome.REPLAYED), request_id=asked[0])
    with transaction.atomic(using=alias):
        tried = conclude(alias, [replace(found, request=replace(request, approved_by=""))])[0]
        transaction.set_rollback(True, using=alias)
    if tried.outcome is not Outcome.APPLIED:
        return _told(alias, found, tried.outcome)
    queue, task = places(request.verb, found.facts or {}, request.params)[0]
    return _wait(alias, found, queue=queue, task=task)


def ask_for_bulk(alias: str, request: Request) -> Action:
    """Have a whole bulk action wait for a second person; one that waits already is not asked for twice."""
    facts = approving.lock_frozen(alias, str(request.target_id))
    found = Found(request, facts)
    if facts is None or facts["state"] != "frozen":
        return _told(alias, found, Outcome.GONE if facts is None else Outcome.REFUSED_STATE)
    waiting = approving.find_waiting(alias, BULK, str(request.target_id))
    if waiting is not None:
        return replace(_told(alias, found, Outcome.REPLAYED), request_id=waiting)
    return _wait(alias, found, queue=None, task=None)


def _wait(alias: str, found: Found, *, queue: str | None, task: str | None) -> Action:
    request = found.request
    asked = {
        "valid_seconds": conf.current().approval_seconds,
        "version_seen": request.version_seen,
        "verb": request.verb.name,
        "target_kind": request.target_kind,
        "target_id": str(request.target_id),
        "queue": queue,
        "task": task,
        "actor_id": request.actor.id,
        "actor_name": request.actor.name,
        "reason": request.reason,
        "ticket": request.ticket,
        "params": request.params,
        "idempotency_key": request.idempotency_key,
    }
    id = approving.ask(alias, asked)
    facts = {**(found.facts or {}), "request": id}
    return replace(_told(alias, replace(found, facts=facts), Outcome.REQUESTED), request_id=id)


def _approve(alias: str, found: Found, facts: Mapping[str, Any]) -> Action:
    """Approve a request and do what it asks for, or neither. The version is compared again, under its lock."""
    request = found.request
    verb = VERBS.get(facts["verb"])
    if verb is None or not request.actor.may(verb):
        return _told(alias, found, Outcome.FORBIDDEN)
    done: tuple[Request, Action] | None = None
    with transaction.atomic(using=alias):
        approved = conclude(alias, [found])[0]
        if approved.outcome is Outcome.APPLIED:
            done = _do(alias, verb, request.actor, facts)
        if done is None or done[1].outcome is not Outcome.APPLIED:
            transaction.set_rollback(True, using=alias)
    if done is None:
        why = why_not_decided(request.verb, facts, request.actor.id, request.actor.name)
        return replace(_told(alias, found, approved.outcome), why=why)
    action = done[1]
    if action.outcome is not Outcome.APPLIED:
        told = _told(alias, replace(found, facts={**facts, "found": action.facts}), action.outcome)
        return replace(told, why=why_stale(action.outcome, action.why))
    return replace(approved, done=done)


def _do(alias: str, verb: Verb, approver: Actor, facts: Mapping[str, Any]) -> tuple[Request, Action]:
    """Do what was asked for, in the asker's name and words, with the approver's permissions."""
    kind, target = facts["target_kind"], facts["target_id"]
    request = Request(
        verb=verb,
        target_id=int(target) if kind in NUMBERED else target,
        version_seen=facts["version_seen"],
        actor=replace(approver, id=facts["asked_by_id"], name=facts["asked_by"]),
        reason=facts["reason"],
        ticket=facts["ticket"],
        params=json.loads(facts["params"]),
        idempotency_key=facts["idempotency_key"],
        kind=kind,
        approved_by=approver.name,
    )
    if kind == BULK:
        return request, _start(alias, request)
    locked = operating.lock_target(alias, kind, request.target_id)
    replay = find_replays(alias, [request]).get(request.idempotency_key or "")
    return request, conclude(alias, [Found(request, locked, replay)])[0]


def _start(alias: str, request: Request) -> Action:
    """Start a bulk action: its rows are acted on from now on, each under its own lock and guards."""
    started = freezing.start(
        alias,
        UUID(str(request.target_id)),
        actor=(request.actor.id, request.actor.name),
        reason=request.reason,
        ticket=request.ticket,
        spread_seconds=float(request.params.get("spread_seconds", 0.0)),
    )
    if started:
        notifying.hint_bulk(alias)
    return _told(alias, Found(request, {}), Outcome.APPLIED if started else Outcome.REFUSED_STATE)


def _told(alias: str, found: Found, outcome: Outcome) -> Action:
    return audited(alias, [found], [outcome], {})[0]
