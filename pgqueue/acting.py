"""What comes of operators' requests, one or many: decided under the locks, written, and on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import conf, notifying
from .actors import Actor, places
from .cloning import refuse_misfit
from .protocol import operating
from .protocol.operating import AuditRow, Change, Replay
from .refusals import IdempotencyKeyReusedError
from .states import WAITING, Outcome, State
from .verb_reasons import why_against_evidence, why_refused
from .verbs import ACTIVE, COMPENSATE, Verb

_EXPLAINED = (Outcome.REFUSED_RUNNING, Outcome.REFUSED_UNKNOWN, Outcome.REFUSED_STATE)


@dataclass(frozen=True, slots=True)
class Request:
    """What an operator asked for: everything that the audit row repeats."""

    verb: Verb
    target_id: int | str
    version_seen: int | None
    actor: Actor
    reason: str
    ticket: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    payload: Mapping[str, Any] = field(default_factory=dict)
    """What else its statement is given, and nobody is told: the arguments of a job."""
    idempotency_key: str | None = None
    wait_seconds: float | None = None
    kind: str = ""
    """Kind of its target, where that is not the verb's."""
    approved_by: str | None = None
    """Who has approved it, where a second person had to."""

    @property
    def target_kind(self) -> str:
        """Return the kind of its target."""
        return self.kind or self.verb.kind

    def needs_approval(self) -> bool:
        """Say whether a second person must approve it, and none has."""
        return self.approved_by is None and self.verb.name in conf.current().two_person_verbs


@dataclass(frozen=True, slots=True)
class Action:
    """What came of a request. `facts` are the target's columns as they were found under its lock."""

    outcome: Outcome
    audit_id: int
    version_found: int | None = None
    version_after: int | None = None
    state_found: str | None = None
    state_after: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    replay: Replay | None = None
    new_job_id: int | None = None
    """The job that a `clone` made, or a `compensate`."""
    why: str | None = None
    """Why nothing was done, where the outcome alone does not say it."""
    request_id: int | None = None
    """The request for approval that waits now, or has waited before."""
    done: tuple[Request, Action] | None = None
    """What an approval did."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a request met: its target's facts under the lock, and the action that it would be a replay of."""

    request: Request
    facts: Mapping[str, Any] | None
    replay: Replay | None = None
    is_held: bool = False


def conclude(alias: str, found: Sequence[Found]) -> list[Action]:
    """Decide about locked targets of one verb, write what applies and one audit row for each.

    Whether one target is asked for or many, this is the path: the same checks, statement and record.
    """
    before = [_before(one) for one in found]
    tried = [one for one, outcome in zip(found, before, strict=True) if outcome is None]
    changes = _change(alias, tried)
    for queue in sorted({change.queue for change in changes.values() if change.state in (*WAITING, ACTIVE)}):
        notifying.wake(alias, queue)
    outcomes = [
        _after(one, changes) if outcome is None else outcome for one, outcome in zip(found, before, strict=True)
    ]
    return audited(alias, found, outcomes, changes)


def _before(one: Found) -> Outcome | None:
    """Return what comes of a request without a try; None for one whose guards decide."""
    request = one.request
    if one.replay is not None:
        return Outcome.REPLAYED
    if one.facts is None:
        return Outcome.BUSY if one.is_held else Outcome.GONE
    if request.needs_approval():
        return Outcome.FORBIDDEN
    if request.verb.name == COMPENSATE and not one.facts.get("compensation"):
        return _refusal(request, one.facts)
    if why_against_evidence(request.verb, one.facts, request.params) is not None:
        return _refusal(request, one.facts)
    touched = places(request.verb, one.facts, request.params)
    may = request.actor.may(request.verb) and all(request.actor.may_touch(request.verb, *place) for place in touched)
    return None if may else Outcome.FORBIDDEN


def _change(alias: str, tried: Sequence[Found]) -> Mapping[int | str, Change]:
    """Run the verb's statement; return what it changed, by target."""
    if not tried:
        return {}
    verb = tried[0].request.verb
    for one in tried:
        if one.request.payload:
            refuse_misfit(verb.name, (one.facts or {})["task"], one.request.payload)
    params = [_statement_params(one.request, one.facts or {}) for one in tried]
    if verb.takes_many:
        return operating.change_many(alias, verb.statement or verb.name, params)
    (one,) = tried
    change = operating.change(alias, verb.statement or verb.name, params[0])
    if change is not None and verb.name == COMPENSATE:
        change = _compensated(alias, one, change)
    return {} if change is None else {one.request.target_id: change}


def _compensated(alias: str, one: Found, change: Change) -> Change:
    given = one.request.params
    id, queue = operating.compensate(alias, one.facts or {}, given["effect"], given["remote_reference"])
    notifying.wake(alias, queue)
    return replace(change, new_job_id=id)


def _after(one: Found, changes: Mapping[int | str, Change]) -> Outcome:
    return Outcome.APPLIED if one.request.target_id in changes else _refusal(one.request, one.facts or {})


def _statement_params(request: Request, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": request.target_id,
        "version_seen": request.version_seen,
        "actor_id": request.actor.id,
        "actor_name": request.actor.name,
        "reason": request.reason,
        **request.verb.params({**facts, "actor_name": request.actor.name}, request.params),
        **request.payload,
    }


def _refusal(request: Request, facts: Mapping[str, Any]) -> Outcome:
    """Say why the guards refused, from the facts of the locked row."""
    if facts["version"] != request.version_seen:
        return Outcome.CHANGED
    is_running, verb = facts["state"] == State.RUNNING, request.verb
    if is_running and State.RUNNING not in verb.states:
        return Outcome.REFUSED_RUNNING
    forbids = not (is_running and verb.over_unknown_effects)
    if facts["state"] == State.UNKNOWN or (facts.get("unknown_effects") and forbids):
        return Outcome.REFUSED_UNKNOWN
    return Outcome.REFUSED_STATE


def audited(
    alias: str, found: Sequence[Found], outcomes: Sequence[Outcome], changes: Mapping[int | str, Change]
) -> list[Action]:
    """Write one audit row for each request, and return what came of it."""
    told = [
        replace(one, facts=None) if outcome is Outcome.FORBIDDEN else one
        for one, outcome in zip(found, outcomes, strict=True)
    ]
    after = [changes.get(one.request.target_id) for one in told]
    rows = [_audit_row(*each) for each in zip(told, outcomes, after, strict=True)]
    ids = operating.audit(alias, rows)
    return [_action(*each) for each in zip(told, outcomes, after, ids, strict=True)]


def _audit_row(one: Found, outcome: Outcome, change: Change | None) -> AuditRow:
    request, facts = one.request, one.facts or {}
    further: dict[str, Any] = {"approved_by": request.approved_by} if request.approved_by else {}
    further |= {"new_job": change.new_job_id} if change and change.new_job_id else {}
    return AuditRow(
        verb=request.verb.name,
        target_kind=request.target_kind,
        target_id=str(request.target_id),
        outcome=str(outcome),
        actor_id=request.actor.id,
        actor_name=request.actor.name,
        reason=request.reason,
        ticket=request.ticket,
        version_seen=request.version_seen,
        version_found=facts.get("version"),
        version_after=change.version if change else None,
        state_found=facts.get("state"),
        idempotency_key=request.idempotency_key,
        params=request.params,
        facts={**facts, **further},
    )


def _action(one: Found, outcome: Outcome, change: Change | None, audit_id: int) -> Action:
    facts = one.facts or {}
    return Action(
        outcome=outcome,
        audit_id=audit_id,
        version_found=facts.get("version"),
        version_after=change.version if change else None,
        state_found=facts.get("state"),
        state_after=change.state if change else None,
        facts=facts,
        replay=one.replay,
        new_job_id=change.new_job_id if change else None,
        why=why_refused(one.request.verb, facts, one.request.params) if outcome in _EXPLAINED and facts else None,
    )


def find_replays(alias: str, requests: Sequence[Request]) -> dict[str, Replay]:
    """Return the actions that requests would repeat, by key. Raise for a key of another request."""
    keyed = {request.idempotency_key: request for request in requests if request.idempotency_key is not None}
    replays = operating.find_replays(alias, [(key, request.params) for key, request in keyed.items()])
    for key, replay in replays.items():
        refuse_another(keyed[key], replay)
    return replays


def refuse_another(request: Request, replay: Replay) -> None:
    """Raise `IdempotencyKeyReusedError` where the request's key stands for another request."""
    target = (request.verb.name, request.target_kind, str(request.target_id))
    if replay.same_params and target == (replay.verb, replay.target_kind, replay.target_id):
        return
    given, expected = (f"{request.verb.name} {request.target_id}", f"{replay.verb} {replay.target_id}")
    raise IdempotencyKeyReusedError(str(request.idempotency_key), given, expected)
