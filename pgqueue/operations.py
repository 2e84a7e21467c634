"""What operators may do: one shape for every verb, one outcome, one audit row whatever came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db import IntegrityError, OperationalError, transaction
from django.db.transaction import TransactionManagementError

from . import conf, signalling
from .acting import Action as Action
from .acting import Found, audited, conclude, find_replays
from .acting import Request as Request
from .actors import Actor as Actor
from .approving import ask_for_bulk, decide
from .bounds import NAME, is_name
from .cloning import ARGS, split
from .exceptions import JobNotFoundError, ResultError
from .protocol import operating
from .protocol.approving import BULK
from .protocol.connecting import job_alias
from .refusals import LimitNameError, ReasonMissingError, UnknownVerbError, VerbParamsError
from .states import FINAL, Outcome
from .verbs import CLONE, VERBS, Verb
from .verdicts import as_json

RESULT = "result"
_BUSY_SQLSTATES = ("55P03", "57014", "40P01", "40001")


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

    A verb of `TWO_PERSON_VERBS` is `requested` instead, whoever asks and from where: it is done when somebody else,
    who is known by an id, applies `approve` to the request.

    `target_id` is a job's id, a queue's name, or of what limits bound the kind and name, as in `tenant:acme`;
    `version_seen` None has seen nothing and changes nothing. Owns
    its transaction, which must be the outermost one: what it answers is committed. A lock that somebody holds is
    waited for `wait_seconds` (by default `LOCK_TIMEOUT_SECONDS`), then it is `busy`. Raise `UnknownVerbError`,
    `ReasonMissingError`, `VerbParamsError`, `JobNotFoundError` for an id that is not a number, `LimitNameError` for a
    name that no limit can have, and `IdempotencyKeyReusedError` for a key that stands for another request.
    """
    told, payload = split(verb, params or {}) if verb == CLONE else (params or {}, {})
    request = Request(
        verb=_verb(verb),
        target_id=_target(_verb(verb), target_id),
        version_seen=operating.bigint(version_seen),
        actor=replace(actor, name=operating.text(actor.name)),
        reason=operating.text(reason),
        ticket=operating.text(ticket),
        params=_checked(_verb(verb), told),
        payload=payload,
        idempotency_key=_key(verb, idempotency_key),
        wait_seconds=wait_seconds,
    )
    if payload and request.needs_approval():
        raise VerbParamsError(verb, ARGS, "cannot wait for a second person: it would have to be kept where others read")
    if not request.reason and request.verb.level >= 2:
        raise ReasonMissingError(verb)
    return perform(request)


def perform(request: Request) -> Action:
    """Do what `act` does with a request whose texts and params were checked."""
    alias = job_alias()
    _refuse_foreign_transaction(alias)
    if not request.actor.may(request.verb):
        return _audited_alone(alias, request, Outcome.FORBIDDEN)
    try:
        action = _act(alias, request)
    except OperationalError as error:
        if not is_busy(error):
            raise
        return _audited_alone(alias, request, Outcome.BUSY)
    except IntegrityError as error:
        return _met_another(alias, request, error)
    tell(alias, *(action.done or (request, action)))
    return action


def ask_to_start(
    id: UUID, verb: str, *, actor: Actor, reason: str, ticket: str = "", params: Mapping[str, Any] | None = None
) -> Action:
    """Have a frozen bulk action of a verb of `TWO_PERSON_VERBS` wait for a second person.

    It is `requested`, or `replayed` where somebody has asked before and nobody decided. Owns its transaction.
    """
    request = Request(
        verb=_verb(verb),
        target_id=str(id),
        version_seen=None,
        actor=replace(actor, name=operating.text(actor.name)),
        reason=operating.text(reason),
        ticket=operating.text(ticket),
        params=params or {},
        kind=BULK,
    )
    alias = job_alias()
    with transaction.atomic(using=alias, durable=True):
        operating.begin(alias, lock_timeout_seconds=conf.current().lock_timeout_seconds)
        return ask_for_bulk(alias, request)


def act_on_locked(alias: str, requests: Sequence[Request]) -> list[Action]:
    """Act on many jobs at once, as `act` does on each, within the caller's transaction; return what came of each.

    The requests are for one verb that takes many, whose params were checked before. A job that somebody holds is
    `busy` without a wait. The caller commits, and calls `tell` then. Raise `django.db.IntegrityError` or
    `django.db.OperationalError` where one of them cannot be written: then none is, and each is left to `act`.
    """
    locked, held = operating.lock_jobs(alias, [int(request.target_id) for request in requests])
    replays = find_replays(alias, requests)
    found = [
        Found(
            request,
            locked.get(int(request.target_id)),
            replays.get(request.idempotency_key or ""),
            is_held=request.target_id in held,
        )
        for request in requests
    ]
    return conclude(alias, found)


def tell(alias: str, request: Request, action: Action) -> None:
    """Tell receivers of `task_finished` of a job that a committed action has ended."""
    if request.verb.kind == "job" and action.state_after in FINAL and action.state_after != action.state_found:
        signalling.tell_end(alias, job_id=int(request.target_id), task=action.facts["task"], is_decided=True)


def is_busy(error: OperationalError) -> bool:
    """Say whether a statement gave up because of what another session does."""
    return getattr(error.__cause__, "sqlstate", None) in _BUSY_SQLSTATES


def _met_another(alias: str, request: Request, error: IntegrityError) -> Action:
    """Answer for a unique index that refused: another job of the unique key, or a key applied to another target."""
    if operating.is_unique_key(error):
        return _audited_alone(alias, request, Outcome.REFUSED_DUPLICATE)
    if not operating.is_spent_key(error):
        raise error
    return _replayed_elsewhere(alias, request)


def _checked(verb: Verb, given: Mapping[str, Any]) -> dict[str, Any]:
    # A result is kept as it is, or refused.
    texts = {name: operating.text(value) for name, value in given.items() if isinstance(value, str) and name != RESULT}
    params = {**given, **texts}
    verb.check(params)
    try:
        as_json(given.get(RESULT))
    except ResultError as error:
        raise VerbParamsError(verb.name, RESULT, f"cannot be stored: {error}") from error
    return params


def _verb(name: str) -> Verb:
    try:
        return VERBS[name]
    except KeyError:
        raise UnknownVerbError(name, tuple(VERBS)) from None


def _target(verb: Verb, target_id: int | str) -> int | str:
    if verb.kind == "queue":
        if not is_name(target_id):
            raise VerbParamsError(verb.name, "target", f"is no name of a queue: give {NAME}")
        return target_id
    if verb.kind == "limit":
        return _limit_name(verb, str(target_id))
    try:
        return int(target_id)
    except ValueError:
        if verb.kind != "job":
            raise VerbParamsError(verb.name, "target", f"is no number: give that of the {verb.kind}") from None
        raise JobNotFoundError(target_id) from None


def _key(verb: str, key: str | None) -> str | None:
    if key and not is_name(key):
        raise VerbParamsError(verb, "idempotency_key", f"cannot be stored: give {NAME}")
    return key or None


def _limit_name(verb: Verb, target_id: str) -> str:
    kind, _, name = target_id.partition(":")
    if kind not in verb.limits or not is_name(name):
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
        replays = find_replays(alias, [request])
        return decide(alias, Found(request, facts, replays.get(request.idempotency_key or "")))


def _replayed_elsewhere(alias: str, request: Request) -> Action:
    """Answer for a key that another session applied to another target while we held ours."""
    with transaction.atomic(using=alias, durable=True):
        operating.begin(alias, lock_timeout_seconds=conf.current().lock_timeout_seconds)
        replay = find_replays(alias, [request]).get(request.idempotency_key or "")
        outcome = Outcome.REPLAYED if replay else Outcome.BUSY
        return audited(alias, [Found(request, None, replay)], [outcome], {})[0]


def _audited_alone(alias: str, request: Request, outcome: Outcome) -> Action:
    with transaction.atomic(using=alias, durable=True):
        operating.begin(alias, lock_timeout_seconds=conf.current().lock_timeout_seconds)
        return audited(alias, [Found(request, None)], [outcome], {})[0]
