"""What operators may do: one shape for every verb, one outcome, one audit row whatever came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import IntegrityError, OperationalError, transaction
from django.db.transaction import TransactionManagementError

from . import conf, notifying, signalling
from .actors import Actor as Actor
from .actors import places
from .exceptions import LONGEST_NAME, JobNotFoundError
from .protocol import operating
from .protocol.connecting import job_alias
from .protocol.operating import AuditRow, Change, Replay
from .refusals import IdempotencyKeyReusedError, LimitNameError, ReasonMissingError, UnknownVerbError
from .states import FINAL, WAITING, Outcome, State
from .verbs import ACTIVE, VERBS, Verb, why_refused

_EXPLAINED = (Outcome.REFUSED_RUNNING, Outcome.REFUSED_UNKNOWN, Outcome.REFUSED_STATE)
_BUSY_SQLSTATES = ("55P03", "57014", "40P01", "40001")


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
    idempotency_key: str | None = None
    wait_seconds: float | None = None


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
    """The job that a `clone` made."""
    why: str | None = None
    """Why nothing was done, where the outcome alone does not say it."""


def act(
    verb: str,
    target_id: int | str,
    *,
    version_seen: int | None,
    actor: Actor,
    reason: str,
    ticket: str = "",
    params: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
    wait_seconds: float | None = None,
) -> Action:
    """Apply one verb to what the operator saw, or change nothing; write one audit row either way.

    `target_id` is a job's id, a queue's name, or of what limits bound the kind and name, as in `tenant:acme`;
    `version_seen` None has seen nothing and changes nothing. Owns
    its transaction, which must be the outermost one: what it answers is committed. A lock that somebody holds is
    waited for `wait_seconds` (by default `LOCK_TIMEOUT_SECONDS`), then it is `busy`. Raise `UnknownVerbError`,
    `ReasonMissingError`, `VerbParamsError`, `JobNotFoundError` for an id that is not a number, `LimitNameError` for a
    name that no limit can have, and `IdempotencyKeyReusedError` for a key that stands for another request.
    """
    request = Request(
        verb=_verb(verb),
        target_id=_target(_verb(verb), target_id),
        version_seen=operating.bigint(version_seen),
        actor=replace(actor, name=operating.text(actor.name)),
        reason=operating.text(reason),
        ticket=operating.text(ticket),
        params=_checked(_verb(verb), params or {}),
        idempotency_key=idempotency_key or None,
        wait_seconds=wait_seconds,
    )
    if not request.reason and request.verb.level >= 2:
        raise ReasonMissingError(verb)
    alias = job_alias()
    _refuse_foreign_transaction(alias)
    if not actor.may(request.verb):
        return _audited_alone(alias, request, Outcome.FORBIDDEN)
    try:
        action = _act(alias, request)
    except OperationalError as error:
        if getattr(error.__cause__, "sqlstate", None) not in _BUSY_SQLSTATES:
            raise
        return _audited_alone(alias, request, Outcome.BUSY)
    except IntegrityError as error:
        return _met_another(alias, request, error)
    if request.verb.kind == "job" and action.state_after in FINAL and action.state_after != action.state_found:
        signalling.tell_end(alias, job_id=int(request.target_id), task=action.facts["task"])
    return action


def _met_another(alias: str, request: Request, error: IntegrityError) -> Action:
    """Answer for a unique index that refused: another job of the unique key, or a key applied to another target."""
    if operating.is_unique_key(error):
        return _audited_alone(alias, request, Outcome.REFUSED_DUPLICATE)
    if not operating.is_spent_key(error):
        raise error
    return _replayed_elsewhere(alias, request)


def _checked(verb: Verb, given: Mapping[str, Any]) -> dict[str, Any]:
    params = {name: operating.text(value) if isinstance(value, str) else value for name, value in given.items()}
    verb.check(params)
    return params


def _verb(name: str) -> Verb:
    try:
        return VERBS[name]
    except KeyError:
        raise UnknownVerbError(name, tuple(VERBS)) from None


def _target(verb: Verb, target_id: int | str) -> int | str:
    if verb.kind == "queue":
        return str(target_id)
    if verb.kind == "limit":
        return _limit_name(verb, str(target_id))
    try:
        return int(target_id)
    except ValueError:
        raise JobNotFoundError(target_id) from None


def _limit_name(verb: Verb, target_id: str) -> str:
    kind, _, name = target_id.partition(":")
    if kind not in verb.limits or not 0 < len(name) <= LONGEST_NAME or "\0" in name:
        raise LimitNameError(target_id, verb.limits)
    return target_id


def _refuse_foreign_transaction(alias: str) -> None:
    """Refuse a connection with autocommit off: `atomic` would leave the COMMIT to somebody else."""
    connection = transaction.get_connection(alias)
    if not (connection.in_atomic_block or connection.get_autocommit()):
        raise TransactionManagementError("An operator's action commits by itself: turn autocommit on around it.")


def _act(alias: str, request: Request) -> Action:
    with transaction.atomic(using=alias, durable=True):
        operating.begin(alias, lock_timeout_seconds=request.wait_seconds or conf.current().lock_timeout_seconds)
        facts = operating.lock_target(alias, request.verb.kind, request.target_id)
        replay = _find_replay(alias, request)
        if replay is not None:
            return _audited(alias, request, Outcome.REPLAYED, facts, replay=replay)
        if facts is None:
            return _audited(alias, request, Outcome.GONE, None)
        touched = places(request.verb, facts, request.params)
        if not all(request.actor.may_touch(request.verb, *place) for place in touched):
            return _audited(alias, request, Outcome.FORBIDDEN, None)
        statement = request.verb.statement or request.verb.name
        change = operating.change(alias, statement, _statement_params(request, facts))
        if change is None:
            return _audited(alias, request, _refusal(request, facts), facts)
        if change.state in (*WAITING, ACTIVE):
            notifying.wake(alias, change.queue)
        return _audited(alias, request, Outcome.APPLIED, facts, change=change)


def _statement_params(request: Request, facts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": request.target_id,
        "version_seen": request.version_seen,
        "actor_name": request.actor.name,
        "reason": request.reason,
        **request.verb.params({**facts, "actor_name": request.actor.name}, request.params),
    }


def _refusal(request: Request, facts: Mapping[str, Any]) -> Outcome:
    """Say why the guards refused, from the facts of the locked row."""
    if facts["version"] != request.version_seen:
        return Outcome.CHANGED
    if facts["state"] == State.RUNNING:
        return Outcome.REFUSED_STATE if State.RUNNING in request.verb.states else Outcome.REFUSED_RUNNING
    if facts["state"] == State.UNKNOWN or facts.get("unknown_effects"):
        return Outcome.REFUSED_UNKNOWN
    return Outcome.REFUSED_STATE


def _find_replay(alias: str, request: Request) -> Replay | None:
    if request.idempotency_key is None:
        return None
    replay = operating.find_replay(alias, request.idempotency_key, request.params)
    if replay is not None and not _is_same(request, replay):
        raise IdempotencyKeyReusedError(
            request.idempotency_key,
            f"{request.verb.name} {request.target_id}",
            f"{replay.verb} {replay.target_id}",
        )
    return replay


def _is_same(request: Request, replay: Replay) -> bool:
    target = (request.verb.name, request.verb.kind, str(request.target_id))
    return replay.same_params and target == (replay.verb, replay.target_kind, replay.target_id)


def _replayed_elsewhere(alias: str, request: Request) -> Action:
    """Answer for a key that another session applied to another target while we held ours."""
    with transaction.atomic(using=alias, durable=True):
        operating.begin(alias, lock_timeout_seconds=conf.current().lock_timeout_seconds)
        replay = _find_replay(alias, request)
        return _audited(alias, request, Outcome.REPLAYED if replay else Outcome.BUSY, None, replay=replay)


def _audited_alone(alias: str, request: Request, outcome: Outcome) -> Action:
    with transaction.atomic(using=alias, durable=True):
        operating.begin(alias, lock_timeout_seconds=conf.current().lock_timeout_seconds)
        return _audited(alias, request, outcome, None)


def _audited(
    alias: str,
    request: Request,
    outcome: Outcome,
    facts: Mapping[str, Any] | None,
    *,
    change: Change | None = None,
    replay: Replay | None = None,
) -> Action:
    found = facts or {}
    version_after = change.version if change else None
    row = AuditRow(
        verb=request.verb.name,
        target_kind=request.verb.kind,
        target_id=str(request.target_id),
        outcome=str(outcome),
        actor_id=request.actor.id,
        actor_name=request.actor.name,
        reason=request.reason,
        ticket=request.ticket,
        version_seen=request.version_seen,
        version_found=found.get("version"),
        version_after=version_after,
        state_found=found.get("state"),
        idempotency_key=request.idempotency_key,
        params=request.params,
        facts=found,
    )
    return Action(
        outcome=outcome,
        audit_id=operating.audit(alias, row),
        version_found=row.version_found,
        version_after=version_after,
        state_found=row.state_found,
        state_after=change.state if change else None,
        facts=found,
        replay=replay,
        new_job_id=change.new_job_id if change else None,
        why=why_refused(request.verb, found, request.params) if outcome in _EXPLAINED else None,
    )
