"""Operator verbs: what each does in each state, and what the audit log says of it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.db import DatabaseError, connection, transaction

from pgqueue.exceptions import JobNotFoundError
from pgqueue.models import Attempt, Job, Limit, OperatorAction, Queue
from pgqueue.operations import Action, Actor, act
from pgqueue.protocol.operating import LONGEST_TEXT
from pgqueue.refusals import LimitNameError, ReasonMissingError, UnknownVerbError
from pgqueue.states import FINAL, TRANSITIONS, By, Lane, Outcome, Recovery, Stage, State
from pgqueue.verb_params import LONGEST_PAUSE_SECONDS
from pgqueue.verb_reasons import why_not
from pgqueue.verbs import VERBS
from tests.factories import ApprovalRequestFactory, JobFactory, LimitFactory, QueueFactory, WorkerFactory, from_now
from tests.races.rows import snapshot

pytestmark = pytest.mark.django_db

OPERATOR = Actor(id="7", name="op1")

A, RUNNING, UNKNOWN, STATE = (
    Outcome.APPLIED,
    Outcome.REFUSED_RUNNING,
    Outcome.REFUSED_UNKNOWN,
    Outcome.REFUSED_STATE,
)
STATES = ("pending", "retrying", "running", "paused", "unknown", "succeeded", "dead", "cancelled")
EXPECTED: dict[str, tuple[Outcome, ...]] = {
    "requeue": (STATE, STATE, RUNNING, STATE, UNKNOWN, STATE, A, A),
    "cancel": (A, A, RUNNING, A, UNKNOWN, STATE, STATE, STATE),
    "hold": (A, A, RUNNING, STATE, UNKNOWN, STATE, STATE, STATE),
    "unhold": (STATE, STATE, RUNNING, A, UNKNOWN, STATE, STATE, STATE),
    "give_up": (A, A, RUNNING, STATE, A, STATE, STATE, STATE),
    "ask_to_stop": (STATE, STATE, A, STATE, UNKNOWN, STATE, STATE, STATE),
    "break_lease": (STATE, STATE, A, STATE, UNKNOWN, STATE, STATE, STATE),
    "skip_head": (A, A, RUNNING, A, A, STATE, STATE, STATE),
    **dict.fromkeys(
        ("happened", "happened_finish", "did_not_happen", "take", "hand_over", "snooze"),
        (STATE, STATE, RUNNING, STATE, A, STATE, STATE, STATE),
    ),
    **dict.fromkeys(
        ("give_up_unknown", "ask_again", "compensate"), (STATE, STATE, RUNNING, STATE, UNKNOWN, STATE, STATE, STATE)
    ),
    **dict.fromkeys(
        ("run_now", "reschedule", "reprioritise", "move_queue"),
        (A, A, RUNNING, STATE, UNKNOWN, STATE, STATE, STATE),
    ),
    "clone": (A, A, A, A, UNKNOWN, A, A, A),
    "purge": (STATE, STATE, RUNNING, STATE, UNKNOWN, A, A, A),
}
"""What each verb answers in each of `STATES`, of a job without effects; a verb without its row fails."""
LEADS_TO = {
    "requeue": "pending",
    "cancel": "cancelled",
    "hold": "paused",
    "unhold": "pending",
    "give_up": "dead",
    "ask_to_stop": "running",
    "break_lease": "unknown",
    "happened": "retrying",
    "happened_finish": "succeeded",
    "did_not_happen": "retrying",
}
"""A verb that is not here leaves the state as it is."""
GIVEN: dict[str, dict[str, Any]] = {
    "happened": {"remote_reference": "r", "evidence": "seen"},
    "happened_finish": {"remote_reference": "r", "evidence": "seen"},
    "compensate": {"remote_reference": "r", "evidence": "seen"},
    "did_not_happen": {"evidence": "asked"},
    "hand_over": {"to": "bob"},
    "snooze": {"for_seconds": 60},
    "reschedule": {"delay_seconds": 60},
    "reprioritise": {"priority": 7},
    "move_queue": {"queue": "mail"},
}
SHAPES = {"skip_head": {"shard_key": "customer:7", "blocks_key": True}}
QUEUE_EXPECTED: dict[str, tuple[Outcome, ...]] = {
    "pause_queue": (A, A, STATE, STATE, A),
    "resume_queue": (STATE, STATE, A, A, STATE),
}
QUEUE_STATES = ("no row", "active", "paused", "paused_for_now", "lapsed")

JOB_VERBS = [verb.name for verb in VERBS.values() if verb.kind == "job"]
QUEUE_VERBS = [verb.name for verb in VERBS.values() if verb.kind == "queue"]


def job_in(state: str, **columns: Any) -> Job:
    """Return a job in that state that begun no effect."""
    traits: dict[str, Any] = {} if state == State.PENDING else {state: True}
    if state == State.UNKNOWN:
        traits |= {"recovery": Recovery.UNDECLARED, "unknown_effects": 0, "stage": Stage.NOT_CALLED}
    if "shard_key" in columns:
        traits |= {"lane": Lane.ALONE if state == State.UNKNOWN else Lane.LANED}
    return JobFactory(**{**traits, **columns})


def queue_in(state: str) -> tuple[str, int]:
    """Return name and version of a queue in that state."""
    if state == "no row":
        return "mail", 0
    queue = QueueFactory(**({} if state == "active" else {state: True}))
    return queue.name, queue.version


def do(verb: str, target: Any, version_seen: int | None = None, **given: Any) -> Action:
    """Act on a job row as it was seen, or on anything with a version."""
    if isinstance(target, Job):
        target, version_seen = target.id, target.version if version_seen is None else version_seen
    usual = {"version_seen": version_seen, "actor": OPERATOR, "reason": "a test", "params": GIVEN.get(verb)}
    return act(verb, target, **{**usual, **given})


def audited() -> OperatorAction:
    """Return the last audit row."""
    return OperatorAction.objects.latest("id")


# -- every verb in every state -----------------------------------------------------------------------------


def test_every_state_is_in_the_table() -> None:
    assert set(STATES) == set(State)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", JOB_VERBS)
def test_each_verb_has_its_outcome_in_each_state(name: str, state: str) -> None:
    job = job_in(state, **SHAPES.get(name, {}))
    before = snapshot()
    expected = EXPECTED[name][STATES.index(state)]
    action = do(name, job)
    assert (action.outcome, action.version_found, action.state_found) == (expected, job.version, state)
    if expected is not Outcome.APPLIED:
        assert snapshot() == before
        assert (action.version_after, action.state_after) == (None, None)
        return
    row = Job.objects.get(pk=job.pk)
    assert (row.version, row.state) == (job.version + 1, LEADS_TO.get(name, state))
    assert (action.version_after, action.state_after) == (row.version, row.state)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", JOB_VERBS)
def test_no_verb_writes_when_the_version_differs(name: str, state: str) -> None:
    job = job_in(state)
    before = snapshot()
    for seen in (job.version - 1, job.version + 1, 0, None, 2**63, -(2**70)):
        action = do(name, job.id, seen)
        assert (action.outcome, action.version_found) == (Outcome.CHANGED, job.version)
    assert snapshot() == before


@pytest.mark.parametrize("state", QUEUE_STATES)
@pytest.mark.parametrize("name", QUEUE_VERBS)
def test_each_verb_of_a_queue_has_its_outcome_in_each_state(name: str, state: str) -> None:
    queue, version = queue_in(state)
    expected = QUEUE_EXPECTED[name][QUEUE_STATES.index(state)]
    action = do(name, queue, version)
    assert action.outcome == expected
    row = Queue.objects.get()
    applied = expected is Outcome.APPLIED
    assert row.version == version + applied
    assert action.version_after == (row.version if applied else None)
    if applied:
        assert (row.paused_at is not None) == (name == "pause_queue")


@pytest.mark.parametrize("state", QUEUE_STATES)
@pytest.mark.parametrize("name", QUEUE_VERBS)
def test_no_verb_of_a_queue_writes_when_the_version_differs(name: str, state: str) -> None:
    queue, version = queue_in(state)
    before = list(Queue.objects.values())
    for seen in (version + 1, None, 2**63):
        assert do(name, queue, seen).outcome == Outcome.CHANGED
    assert list(Queue.objects.values()) == before or state == "no row"
    assert Queue.objects.get().version == version


OTHER_STATES = (
    *("active", "paused", "waiting", "approved", "declined"),
    *("alive", "draining", "silent", "stopped"),
)
"""Of queues and limits, requests, and workers."""


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_what_a_page_offers_is_what_is_applied(verb: Any) -> None:
    if verb.kind == "job":
        offered = {state for state in STATES if why_not(verb, state, blocks_key=True) is None}
        assert offered == {state for state, outcome in zip(STATES, EXPECTED[verb.name], strict=True) if outcome is A}
    else:
        told = {state for state in OTHER_STATES if why_not(verb, state) is None}
        assert told == set(verb.states)


@pytest.mark.parametrize("name", ["cancel", "give_up"])
def test_a_verb_that_an_unknown_outcome_forbids_is_not_offered_over_one(name: str) -> None:
    [state, *_] = VERBS[name].states
    assert why_not(VERBS[name], state, unknown_effects=1) == (
        "The outcome of 1 effect is unknown: that must be reconciled first."
    )


def test_a_job_that_was_asked_to_stop_is_not_offered_the_question_again() -> None:
    assert why_not(VERBS["ask_to_stop"], State.RUNNING, stop_requested=True) is not None
    assert why_not(VERBS["break_lease"], State.RUNNING, stop_requested=True) is None


def test_verbs_make_the_moves_of_the_table_and_no_others() -> None:
    staying = {"run_now", "reschedule", "reprioritise", "move_queue"}
    staying |= {"ask_to_stop", "skip_head", "ask_again", "take", "hand_over", "snooze", "clone", "purge"}
    for name in set(JOB_VERBS) - staying:
        statement = VERBS[name].statement or name
        moves = {move.source for move in TRANSITIONS if move.by is By.OPERATOR and move.verb == statement}
        assert moves == set(VERBS[name].states)


@pytest.mark.parametrize("name", ["cancel", "give_up"])
def test_a_waiting_job_with_an_unknown_effect_cannot_be_ended(name: str) -> None:
    job = JobFactory(retrying=True, recovery=Recovery.IDEMPOTENT, unknown_effects=1, stage=Stage.OUTCOME_UNKNOWN)
    before = snapshot()
    assert do(name, job).outcome == Outcome.REFUSED_UNKNOWN
    assert snapshot() == before


def test_an_unknown_job_with_an_unknown_effect_cannot_be_given_up() -> None:
    assert do("give_up", JobFactory(unknown=True)).outcome == Outcome.REFUSED_UNKNOWN


def test_a_second_stop_request_is_refused_but_not_for_running() -> None:
    job = JobFactory(stop_requested=True)
    before = snapshot()
    assert do("ask_to_stop", job).outcome == Outcome.REFUSED_STATE
    assert snapshot() == before


# -- what the verbs do -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recovery", "effects", "traits", "state"),
    [
        (Recovery.UNDECLARED, 0, {}, State.UNKNOWN),
        (Recovery.IDEMPOTENT, 0, {}, State.RETRYING),
        (Recovery.TRANSACTIONAL, 0, {}, State.RETRYING),
        (Recovery.MANUAL, 0, {}, State.RETRYING),
        (Recovery.PROBE, 0, {}, State.RETRYING),
        (Recovery.IDEMPOTENT, 1, {}, State.RETRYING),
        (Recovery.MANUAL, 1, {}, State.UNKNOWN),
        (Recovery.PROBE, 1, {}, State.UNKNOWN),
        (Recovery.UNDECLARED, 1, {}, State.UNKNOWN),
        (Recovery.IDEMPOTENT, 0, {"stop_requested": True}, State.CANCELLED),
        (Recovery.IDEMPOTENT, 1, {"stop_requested": True}, State.UNKNOWN),
        (Recovery.MANUAL, 0, {"expired": True}, State.RETRYING),
    ],
)
def test_break_lease_follows_the_decision_table(
    recovery: str, effects: int, traits: dict[str, Any], state: State
) -> None:
    stage = Stage.OUTCOME_UNKNOWN if effects else Stage.NOT_CALLED
    job = JobFactory(**{"running": True, **traits}, recovery=recovery, unknown_effects=effects, stage=stage)
    action = do("break_lease", job)
    assert (action.outcome, action.state_after) == (Outcome.APPLIED, state)
    row = Job.objects.get()
    assert (row.state, row.worker_id, row.lease_until) == (state, None, None)
    assert row.fence > job.fence
    assert (row.attempts, row.lease_losses, row.lane) == (job.attempts, job.lease_losses, job.lane)
    assert (row.finished_at is not None) == (state in FINAL)
    attempt = Attempt.objects.get()
    assert (attempt.fence, attempt.worker_id, attempt.outcome) == (job.fence, job.worker_id, "lost")
    assert "operator" in attempt.message


@pytest.mark.parametrize("state", [State.PENDING, State.RETRYING])
def test_unhold_returns_a_job_to_where_it_came_from(state: State) -> None:
    job = job_in(state)
    before = Job.objects.values().get()
    do("hold", job)
    held = Job.objects.get()
    assert (held.state, held.held_from) == (State.PAUSED, state)
    assert do("unhold", held).state_after == state
    assert Job.objects.values().get() == {**before, "version": job.version + 2}


@pytest.mark.parametrize(
    ("traits", "attempts", "max_attempts", "allowed"),
    [({"dead": True}, 8, 8, 9), ({"dead": True}, 1, 8, 8), ({"cancelled": True}, 0, 3, 3)],
)
def test_requeue_allows_one_more_attempt_where_they_were_used_up(
    traits: dict[str, Any], attempts: int, max_attempts: int, allowed: int
) -> None:
    job = JobFactory(**traits, attempts=attempts, max_attempts=max_attempts)
    assert do("requeue", job).outcome == Outcome.APPLIED
    row = Job.objects.get()
    assert (row.state, row.attempts, row.max_attempts) == (State.PENDING, attempts, allowed)
    assert row.run_at > job.run_at
    assert (row.started_at, row.finished_at) == (None, None)


@pytest.mark.parametrize(
    ("columns", "lane"), [({}, Lane.PLAIN), ({"shard_key": "a"}, Lane.LANED), ({"tenant": "a"}, Lane.LANED)]
)
def test_requeue_starts_lost_leases_anew_and_clears_the_stop_request(columns: dict[str, str], lane: Lane) -> None:
    job = JobFactory(dead=True, alone=True, stop_requested_at=from_now(-60), **columns)
    assert do("requeue", job).outcome == Outcome.APPLIED
    row = Job.objects.get()
    assert (row.lease_losses, row.lane, row.stop_requested_at) == (0, lane, None)


def test_requeue_is_refused_where_no_attempt_can_be_added() -> None:
    job = JobFactory(dead=True, attempts=32_767, max_attempts=32_767)
    assert do("requeue", job).outcome == Outcome.REFUSED_STATE


def test_cancel_and_give_up_of_a_held_or_unknown_job_leave_a_legal_row() -> None:
    assert do("cancel", JobFactory(paused=True)).state_after == State.CANCELLED
    probing = job_in(State.UNKNOWN, probe_at=from_now(60))
    assert do("give_up", probing).state_after == State.DEAD
    assert Job.objects.get(id=probing.id).probe_at is None


def test_pause_writes_who_why_and_until_when() -> None:
    queue = QueueFactory()
    assert do("pause_queue", queue.name, 1, reason="gateway down", params={"for_seconds": 60}).outcome == A
    row = Queue.objects.get()
    assert (row.paused_by, row.pause_reason) == ("op1", "gateway down")
    assert row.paused_until - row.paused_at == timedelta(seconds=60)
    assert do("resume_queue", queue.name, 2).outcome == A
    row = Queue.objects.get()
    assert (row.paused_at, row.paused_until, row.paused_by, row.pause_reason) == (None, None, None, None)


def test_a_lapsed_pause_is_active_and_can_be_paused_anew() -> None:
    queue = QueueFactory(lapsed=True)
    action = do("pause_queue", queue.name, 1)
    assert (action.outcome, action.state_found) == (A, "active")
    assert Queue.objects.get().paused_until is None


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), LONGEST_PAUSE_SECONDS * 2])
def test_a_pause_that_could_not_hold_is_refused_and_nothing_is_done(seconds: float) -> None:
    with pytest.raises(ValueError, match="for_seconds"):
        do("pause_queue", "mail", 0, params={"for_seconds": seconds})
    assert not Queue.objects.exists()
    assert not OperatorAction.objects.exists()


def test_the_longest_pause_can_be_stored() -> None:
    assert do("pause_queue", "mail", 0, params={"for_seconds": LONGEST_PAUSE_SECONDS}).outcome == A


# -- requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["", "  \n", "\0"])
def test_an_action_without_a_reason_is_refused_and_not_recorded(reason: str) -> None:
    job = JobFactory()
    before = snapshot()
    with pytest.raises(ReasonMissingError):
        do("hold", job, reason=reason)
    assert snapshot() == before
    assert not OperatorAction.objects.exists()


@pytest.mark.parametrize("verb", ["delete", "", "HOLD", "claim"])
def test_a_verb_that_does_not_exist_is_refused(verb: str) -> None:
    with pytest.raises(UnknownVerbError, match="use one of"):
        do(verb, JobFactory())


@pytest.mark.parametrize("id", [0, -1, 2**31, 2**63 - 1, 2**63, -(2**63) - 1, 10**30, str(2**64)])
def test_an_id_that_no_job_has_is_gone(id: int | str) -> None:
    assert do("hold", id, 1).outcome == Outcome.GONE
    row = audited()
    assert (row.outcome, row.target_id, row.version_found, row.facts) == ("gone", str(id), None, {})


@pytest.mark.parametrize("id", ["", "abc", "1; DROP TABLE pgqueue_job", "0x10", "1.5", "9" * 5_000])
def test_an_id_that_is_no_number_is_an_error(id: str) -> None:
    with pytest.raises(JobNotFoundError):
        do("hold", id, 1)


def test_an_id_may_be_given_as_text() -> None:
    job = JobFactory()
    assert do("hold", str(job.id), job.version).outcome == A


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (" why \n", "why"),
        ("a\0b", "ab"),
        ("\udce9t\ud800", "?t?"),
        ("x" * 3_000, "x" * LONGEST_TEXT),
        ("因为 🔥", "因为 🔥"),
    ],
)
def test_texts_are_kept_as_far_as_the_database_can(given: str, kept: str) -> None:
    do("hold", JobFactory(), reason=given, ticket=given, actor=Actor(id=None, name=given))
    row = audited()
    assert (row.reason, row.ticket, row.actor_name) == (kept, kept, kept)


# -- actors ------------------------------------------------------------------------------------------------


def grant(user: User, *codenames: str) -> User:
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames, content_type__app_label="pgqueue"))
    return User.objects.get(pk=user.pk)


def test_every_verb_has_a_permission_that_exists() -> None:
    held = set(Permission.objects.filter(content_type__app_label="pgqueue").values_list("codename", flat=True))
    assert {verb.permission for verb in VERBS.values()} <= held


def test_a_user_may_what_his_permissions_say() -> None:
    actor = Actor.of(grant(User.objects.create_user("ada"), "hold_job", "view_job"))
    assert actor.permissions == {"hold_job"}
    assert [verb.name for verb in VERBS.values() if actor.may(verb)] == ["hold", "unhold", "skip_head"]
    assert do("hold", JobFactory(), actor=actor).outcome == A


@pytest.mark.parametrize("verb", VERBS)
def test_what_is_forbidden_is_audited_and_changes_nothing(verb: str) -> None:
    user = grant(User.objects.create_user("ada"), "view_job", "view_queue", "view_job_args")
    targets = {"job": JobFactory().id, "queue": QueueFactory().name, "limit": LimitFactory(id="tenant:acme").id}
    targets |= {"request": ApprovalRequestFactory().pk, "worker": WorkerFactory().pk}
    target = targets[VERBS[verb].kind]
    before = snapshot()
    action = do(verb, target, 1, actor=Actor.of(user), reason="I want to", ticket="OPS-1", idempotency_key="k")
    assert (action.outcome, action.version_found, action.facts) == (Outcome.FORBIDDEN, None, {})
    row = audited()
    assert (row.verb, row.target_id, row.outcome) == (verb, str(target), "forbidden")
    assert (row.actor_id, row.actor_name, row.reason, row.ticket) == (str(user.pk), "ada", "I want to", "OPS-1")
    assert snapshot() == before


def test_an_inactive_user_and_nobody_may_nothing_and_a_superuser_everything() -> None:
    inactive = User.objects.create_superuser("ina", is_active=False)
    assert Actor.of(inactive).permissions == set()
    nobody = Actor.of(AnonymousUser())
    assert (nobody.id, nobody.permissions) == (None, set())
    root = Actor.of(User.objects.create_superuser("root"))
    assert all(root.may(verb) for verb in VERBS.values())


def test_deleting_the_user_keeps_the_audit_row_and_the_name() -> None:
    user = User.objects.create_superuser("ada")
    id = user.pk
    do("hold", JobFactory(), actor=Actor.of(user))
    user.delete()
    row = audited()
    assert (row.actor_id, row.actor_name) == (str(id), "ada")


# -- the audit log -----------------------------------------------------------------------------------------


def test_an_applied_action_is_recorded_with_what_was_seen_found_and_left() -> None:
    job = JobFactory(running=True, tenanted=True)
    action = do("ask_to_stop", job, reason="too slow", ticket="OPS-7", idempotency_key="k")
    row = audited()
    assert row.id == action.audit_id
    assert (row.verb, row.target_kind, row.target_id) == ("ask_to_stop", "job", str(job.id))
    assert (row.version_seen, row.version_found, row.version_after) == (2, 2, 3)
    assert (row.outcome, row.state_found, row.reason, row.ticket) == ("applied", "running", "too slow", "OPS-7")
    assert (row.actor_id, row.actor_name, row.idempotency_key) == ("7", "op1", "k")
    assert row.params == {}
    assert row.facts["fence"] == job.fence
    assert row.facts["tenant"] == "acme"
    assert 0 < row.facts["lease_seconds_left"] <= 60
    assert row.facts == json.loads(json.dumps(dict(action.facts)))


def test_a_changed_target_is_recorded_with_both_versions() -> None:
    job = JobFactory(running=True)
    do("cancel", job.id, 1)
    row = audited()
    assert (row.outcome, row.version_seen, row.version_found, row.version_after) == ("changed", 1, 2, None)
    assert (row.state_found, row.facts["worker_id"]) == ("running", job.worker_id)


def test_a_number_that_no_version_has_is_recorded_as_none() -> None:
    do("hold", JobFactory().id, 2**63)
    assert audited().version_seen is None


def test_a_replay_is_recorded_too() -> None:
    job = JobFactory()
    do("hold", job, idempotency_key="k")
    do("hold", job, idempotency_key="k")
    assert list(OperatorAction.objects.order_by("id").values_list("outcome", flat=True)) == ["applied", "replayed"]


@pytest.mark.parametrize(
    "statement", ["UPDATE pgqueue_operatoraction SET reason = ''", "DELETE FROM pgqueue_operatoraction"]
)
def test_the_database_refuses_to_change_the_audit_log(statement: str) -> None:
    do("hold", JobFactory())
    with pytest.raises(DatabaseError, match="append-only"), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(statement)


def test_an_error_that_is_no_spent_key_is_raised_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It must not be answered as `busy`, which asks for the same again."""
    job = JobFactory()
    before = snapshot()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgqueue_job ADD CONSTRAINT test_refuses CHECK (state <> 'paused')")
    with pytest.raises(DatabaseError, match="test_refuses"):
        do("hold", job, idempotency_key="k")
    assert snapshot() == before
    assert not OperatorAction.objects.exists()


# -- what bounds the jobs of a queue, tenant, task or resource -----------------------------------------------


@pytest.mark.parametrize(
    ("verb", "params", "columns"),
    [
        ("set_limit", {"max_running": 3}, {"max_running": 3}),
        ("set_limit", {"max_running": 0}, {"max_running": 0}),
        ("set_limit", {}, {"max_running": None}),
        ("set_rate", {"rate_per_second": 2.5, "burst": 4}, {"rate_per_second": 2.5, "burst": 4, "tokens": 4.0}),
        ("set_rate", {"rate_per_second": 2.5}, {"rate_per_second": 2.5, "burst": 1, "tokens": 1.0}),
        ("set_rate", {}, {"rate_per_second": None, "burst": None, "tokens": None, "refilled_at": None}),
        ("set_weight", {"weight": 4}, {"weight": 4}),
        ("pause_jobs", {"for_seconds": 60}, {"paused_by": "op1", "pause_reason": "a test"}),
    ],
)
def test_what_bounds_a_tenant_is_set_with_its_version_and_a_reason(
    verb: str, params: dict[str, Any], columns: dict[str, Any]
) -> None:
    action = do(verb, "tenant:acme", 0, params=params)
    row = Limit.objects.get()
    assert (action.outcome, action.version_after, row.version) == (A, 1, 1)
    assert {name: getattr(row, name) for name in columns} == columns
    assert (audited().target_kind, audited().target_id, audited().params) == ("limit", "tenant:acme", params)
    assert do(verb, "tenant:acme", 0, params=params).outcome == Outcome.CHANGED


def test_a_lower_rate_gives_nothing_away_and_keeps_what_is_left() -> None:
    LimitFactory(id="tenant:acme", fresh=True, tokens=0.5)
    do("set_rate", "tenant:acme", 1, params={"rate_per_second": 0.001, "burst": 9})
    assert Limit.objects.get().tokens == pytest.approx(0.5, abs=0.1)


def test_a_pause_of_jobs_is_lifted_once() -> None:
    LimitFactory(id="task:t", paused=True)
    assert do("pause_jobs", "task:t", 1).outcome == STATE
    assert do("resume_jobs", "task:t", 1).outcome == A
    assert do("resume_jobs", "task:t", 2).outcome == STATE


@pytest.mark.parametrize(
    ("verb", "target"),
    [
        ("set_limit", "acme"),
        ("set_limit", "customer:acme"),
        ("set_limit", "tenant:"),
        ("set_limit", "tenant:" + "x" * 201),
        ("set_weight", "task:t"),
        ("pause_jobs", "queue:mail"),
        ("resume_jobs", "queue:mail"),
    ],
)
def test_a_name_that_the_verb_cannot_bound_is_refused(verb: str, target: str) -> None:
    with pytest.raises(LimitNameError):
        do(verb, target, 0)
    assert not Limit.objects.exists()


@pytest.mark.parametrize(
    ("verb", "params"),
    [
        ("set_limit", {"max_running": -1}),
        ("set_limit", {"max_running": 1.5}),
        ("set_limit", {"max_running": True}),
        ("set_rate", {"rate_per_second": 0}),
        ("set_rate", {"rate_per_second": 1, "burst": 0}),
        ("set_weight", {"weight": 0}),
        ("set_weight", {"weight": 1001}),
    ],
    ids=str,
)
def test_a_number_that_bounds_nothing_is_refused(verb: str, params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give a"):
        do(verb, "tenant:acme", 0, params=params)
    assert not OperatorAction.objects.exists()
