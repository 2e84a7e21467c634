"""The operator's verbs: each statement by itself, then the whole shape with another session in between."""

import json

import pytest
from django.db import connection

from pgqueue.models import Attempt, OperatorAction, Queue
from pgqueue.operations import Actor, act
from pgqueue.protocol import operating
from pgqueue.sql import load
from pgqueue.states import Lane, Outcome, Recovery, Stage, State
from pgqueue.verbs import VERBS
from tests.factories import JobFactory, OperatorActionFactory, QueueFactory
from tests.statements.doing import WORKER, claim_ids, columns, end, ending, fresh

quick = pytest.mark.django_db
racing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
ADA = Actor(id="1", name="ada")
SHAPES = {
    State.PENDING: {},
    State.RETRYING: {"retrying": True},
    State.RUNNING: {"running": True},
    State.PAUSED: {"paused": True},
    State.UNKNOWN: {"unknown": True, "unknown_effects": 0},
    State.SUCCEEDED: {"succeeded": True},
    State.DEAD: {"dead": True},
    State.CANCELLED: {"cancelled": True},
}
KEYED = {"shard_key": "customer:7", "blocks_key": True}
OVER_UNKNOWN = ("give_up_unknown", "ask_again", "compensate")
GIVEN = {
    "happened": {"remote_reference": "r", "evidence": "seen"},
    "happened_finish": {"remote_reference": "r", "evidence": "seen"},
    "compensate": {"remote_reference": "r", "evidence": "seen"},
    "did_not_happen": {"evidence": "asked"},
    "hand_over": {"to": "bob"},
    "snooze": {"for_seconds": 60.0},
    "reschedule": {"delay_seconds": 60.0},
    "reprioritise": {"priority": 7},
    "move_queue": {"queue": "default"},
}
JOB_VERBS = {name: verb for name, verb in VERBS.items() if verb.kind == "job"}
APPLIES = [(name, state) for name, verb in JOB_VERBS.items() for state in verb.states]
REFUSES = [(name, state) for name, verb in JOB_VERBS.items() for state in State if state not in verb.states]


def job_in(state, verb):
    """Make a job in a state; one that the verb may act on where the state is one of its own."""
    if state == State.UNKNOWN and verb in OVER_UNKNOWN:
        return JobFactory(unknown=True, recovery=Recovery.PROBE)
    keyed = KEYED if verb == "skip_head" else {}
    lane = Lane.ALONE if state == State.UNKNOWN else Lane.LANED if keyed else Lane.PLAIN
    return JobFactory(**SHAPES[state], **keyed, lane=lane)


def change(verb, job, **changes):
    """Run a verb's statement as `act` does, on the row as it stands."""
    with connection.cursor() as cursor:
        cursor.execute(load("lock_job"), {"id": job.pk})
        facts = dict(zip([column.name for column in cursor.description], cursor.fetchone(), strict=True))
    facts |= {"effects": [], "actor_name": "ada"}
    params = {"id": job.pk, "version_seen": job.version, "actor_name": "ada", "reason": "why"}
    params |= JOB_VERBS[verb].params(facts, GIVEN.get(verb, {}))
    statement, params = JOB_VERBS[verb].statement or verb, {**params, **changes}
    if JOB_VERBS[verb].takes_many:
        return operating.change_many("default", statement, [params]).get(job.pk)
    return operating.change("default", statement, params)


def action(verb, target, **changes):
    target_id = target.name if isinstance(target, Queue) else target.pk
    usual = {"version_seen": target.version, "actor": ADA, "reason": "why", "params": GIVEN.get(verb)}
    return act(verb, target_id, **{**usual, **changes})


@quick
@pytest.mark.parametrize(("verb", "state"), APPLIES)
def test_a_verb_applies_in_its_states_and_counts_the_version_up(verb, state):
    job = job_in(state, verb)
    applied = change(verb, job)
    row = fresh(job)
    assert (applied.version, applied.state, applied.queue) == (job.version + 1, row.state, "default")
    assert row.version == job.version + 1


@quick
@pytest.mark.parametrize(("verb", "state"), REFUSES)
def test_a_verb_refuses_every_other_state(verb, state):
    job = job_in(state, verb)
    before = columns(job)
    assert change(verb, job) is None
    assert columns(job) == before


@quick
@pytest.mark.parametrize("verb", JOB_VERBS)
@pytest.mark.parametrize("off_by", [-1, 1])
def test_a_verb_refuses_another_version_than_the_operator_saw(verb, off_by):
    job = job_in(JOB_VERBS[verb].states[0], verb)
    before = columns(job)
    assert change(verb, job, version_seen=job.version + off_by) is None
    assert columns(job) == before


@quick
@pytest.mark.parametrize(
    ("verb", "shape"),
    [
        ("cancel", {"retrying": True}),
        ("cancel", {"paused": True}),
        ("give_up", {"retrying": True}),
        ("give_up", {"unknown": True}),
    ],
)
def test_no_verb_ends_a_job_with_an_unknown_effect(verb, shape):
    job = JobFactory(**{**shape, "unknown_effects": 1, "recovery": Recovery.IDEMPOTENT})
    assert change(verb, job) is None


@quick
def test_a_stop_is_asked_for_once():
    job = JobFactory(running=True)
    change("ask_to_stop", job)
    asked = fresh(job)
    assert (asked.state, asked.stop_requested_at is not None) == ("running", True)
    assert change("ask_to_stop", asked) is None


@quick
@pytest.mark.parametrize("shape", [{}, {"retrying": True}, {"keyed": True}, {"alone": True}])
def test_a_held_job_goes_on_where_it_was(session, shape):
    job = JobFactory(**shape)
    change("hold", job)
    assert fresh(job).held_from == job.state
    assert [id for lane in Lane for id in claim_ids(session, lane=lane)] == []
    change("unhold", fresh(job))
    row = fresh(job)
    assert (row.state, row.held_from, row.run_at, row.lane) == (job.state, None, job.run_at, job.lane)


@quick
@pytest.mark.parametrize(
    ("shape", "lane"),
    [
        ({"dead": True}, Lane.PLAIN),
        ({"dead": True, "keyed": True}, Lane.LANED),
        ({"dead": True, "tenanted": True, "alone": True}, Lane.LANED),
        ({"cancelled": True, "alone": True}, Lane.PLAIN),
    ],
)
def test_a_requeued_job_starts_anew_and_keeps_what_it_counted(session, shape, lane):
    job = JobFactory(**shape, stop_requested_at=None)
    change("requeue", job)
    row = fresh(job)
    assert (row.state, row.lane, row.lease_losses, row.attempts) == ("pending", lane, 0, job.attempts)
    assert (row.started_at, row.finished_at, row.stop_requested_at) == (None, None, None)
    assert row.max_attempts == max(job.max_attempts, job.attempts + 1)
    assert row.run_at > job.run_at
    assert claim_ids(session, lane=lane) == [job.id]


@quick
def test_a_requeued_job_may_fail_once_more(session):
    job = JobFactory(dead=True)
    change("requeue", job)
    claim_ids(session)
    end(session, ending("retry", fresh(job)))
    assert (fresh(job).state, fresh(job).attempts) == ("dead", 9)


@quick
def test_a_requeue_forgets_an_old_stop_request():
    job = JobFactory(stop_requested=True)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET state = 'cancelled', worker_id = NULL, lease_until = NULL, finished_at = now()"
        )
    change("requeue", fresh(job))
    assert fresh(job).stop_requested_at is None


@quick
@pytest.mark.parametrize(
    ("shape", "state"),
    [
        ({"recovery": Recovery.IDEMPOTENT}, State.RETRYING),
        ({"recovery": Recovery.UNDECLARED}, State.UNKNOWN),
        ({"recovery": Recovery.MANUAL, "stop_requested": True}, State.CANCELLED),
        ({"recovery": Recovery.MANUAL, "stage": Stage.OUTCOME_UNKNOWN, "unknown_effects": 1}, State.UNKNOWN),
        ({"recovery": Recovery.IDEMPOTENT, "attempts": 7}, State.RETRYING),
    ],
)
def test_a_broken_lease_is_decided_by_the_row_and_counts_against_nobody(session, shape, state):
    job = JobFactory(running=True, **shape)
    change("break_lease", job)
    row = fresh(job)
    assert (row.state, row.lease_losses, row.attempts, row.lane) == (state, 0, job.attempts, Lane.PLAIN)
    assert row.fence > job.fence
    attempt = Attempt.objects.get(job_id=job.id)
    assert (attempt.fence, attempt.worker_id, attempt.outcome) == (job.fence, WORKER, "lost")
    late = ending("complete", job)
    assert end(session, late).lost == [late]


@quick
@pytest.mark.parametrize("changed", [{"fence": 0}, {"stage": "confirmed"}])
def test_a_lease_is_broken_as_locked_or_not_at_all(changed):
    job = JobFactory(running=True)
    before = columns(job)
    assert change("break_lease", job, **changed) is None
    assert columns(job) == before


def change_queue(verb, queue, **changes):
    params = {"id": queue.name, "version_seen": queue.version, "actor_name": "ada", "reason": "why"}
    return operating.change("default", verb, {**params, "for_seconds": None, **changes})


@quick
def test_a_queue_is_paused_and_resumed():
    queue = QueueFactory()
    paused = change_queue("pause_queue", queue)
    row = fresh(queue)
    assert (paused.version, paused.state, paused.queue) == (2, "paused", queue.name)
    assert (row.paused_at is not None, row.paused_until, row.paused_by, row.pause_reason) == (True, None, "ada", "why")
    resumed = change_queue("resume_queue", row)
    row = fresh(queue)
    assert (resumed.version, resumed.state) == (3, "active")
    assert (row.paused_at, row.paused_until, row.paused_by, row.pause_reason) == (None, None, None, None)


@quick
def test_a_pause_for_a_while_says_until_when():
    queue = QueueFactory()
    change_queue("pause_queue", queue, for_seconds=60.0)
    row = fresh(queue)
    assert (row.paused_until - row.paused_at).total_seconds() == 60


@quick
@pytest.mark.parametrize(
    ("verb", "shape", "applies"),
    [
        ("pause_queue", {}, True),
        ("pause_queue", {"paused": True}, False),
        ("pause_queue", {"paused_for_now": True}, False),
        ("pause_queue", {"lapsed": True}, True),
        ("resume_queue", {}, False),
        ("resume_queue", {"paused": True}, True),
        ("resume_queue", {"paused_for_now": True}, True),
        ("resume_queue", {"lapsed": True}, False),
    ],
)
def test_a_queues_verb_applies_in_the_state_that_the_lock_tells(verb, shape, applies):
    queue = QueueFactory(**shape)
    before = columns(queue)
    with connection.cursor() as cursor:
        cursor.execute(load("lock_queue"), {"id": queue.name})
        state = cursor.fetchone()[2]
    assert (state in VERBS[verb].states) == applies
    assert (change_queue(verb, queue) is not None) == applies
    assert applies or columns(queue) == before


@quick
@pytest.mark.parametrize(("verb", "shape"), [("pause_queue", {}), ("resume_queue", {"paused": True})])
def test_a_queues_verb_compares_the_version(verb, shape):
    queue, neighbour = QueueFactory(**shape), QueueFactory(**shape)
    before = columns(neighbour)
    assert change_queue(verb, queue, version_seen=9) is None
    assert change_queue(verb, queue) is not None
    assert columns(neighbour) == before


@quick
def test_a_queue_gets_its_row_once():
    for _ in range(2):
        with connection.cursor() as cursor:
            cursor.execute(load("ensure_queue"), {"id": "new"})
    assert list(Queue.objects.values_list("name", "version", "paused_at")) == [("new", 0, None)]


@quick
def test_a_replay_is_an_applied_action_and_no_refusal():
    OperatorActionFactory(idempotency_key="k", outcome=Outcome.CHANGED)
    assert operating.find_replays("default", [("k", {})]) == {}
    applied = OperatorActionFactory(idempotency_key="k", params={"a": 1})
    assert operating.find_replays("default", [("other", {})]) == {}
    same, another = (operating.find_replays("default", [("k", {"a": number})])["k"] for number in (1, 2))
    assert (same.id, same.same_params) == (applied.id, True)
    assert (another.id, another.same_params) == (applied.id, False)


@racing
def test_an_action_and_its_refusal_are_both_on_record():
    job = JobFactory()
    assert action("hold", job).outcome == Outcome.APPLIED
    assert action("hold", job).outcome == Outcome.CHANGED
    rows = OperatorAction.objects.order_by("id").values_list(
        "outcome", "version_seen", "version_found", "version_after"
    )
    assert list(rows) == [("applied", 1, 1, 2), ("changed", 1, 2, None)]


@racing
@pytest.mark.parametrize("target_id", [0, 2**62, 2**63, -(2**63) - 1])
def test_a_job_that_never_was_is_gone_and_that_is_on_record(target_id):
    answer = act("hold", target_id, version_seen=1, actor=ADA, reason="why")
    assert answer.outcome == Outcome.GONE
    assert OperatorAction.objects.get().target_id == str(target_id)


@racing
@pytest.mark.parametrize("version_seen", [0, 2**63])
def test_a_version_that_never_was_is_another_and_that_is_on_record(version_seen):
    assert action("hold", JobFactory(), version_seen=version_seen).outcome == Outcome.CHANGED
    assert OperatorAction.objects.get().outcome == "changed"


def in_a_thread(work):
    try:
        return work()
    finally:
        connection.close()


@racing
@pytest.mark.parametrize("verb", [name for name in JOB_VERBS if name != "requeue"])
def test_a_verb_that_waited_decides_by_what_the_other_committed(
    queue_connection, in_background, wait_until_blocking, verb
):
    """Session 1 holds the lock with its change uncommitted, session 2's verb starts, session 1 commits."""
    job = JobFactory(**SHAPES[JOB_VERBS[verb].states[0]])
    with queue_connection.transaction():
        queue_connection.execute("UPDATE pgqueue_job SET version = version + 1 WHERE id = %s", [job.id])
        waiting = in_background(in_a_thread, lambda: action(verb, job))
        wait_until_blocking(queue_connection)
    answer = waiting.result()
    assert (answer.outcome, answer.version_found) == (Outcome.CHANGED, job.version + 1)
    assert fresh(job).state == job.state


@racing
def test_a_verb_does_not_wait_for_ever(queue_connection, settings):
    settings.PGQUEUE = {"LOCK_TIMEOUT_SECONDS": 0.2}
    job = JobFactory()
    with queue_connection.transaction():
        queue_connection.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [job.id])
        assert action("hold", job).outcome == Outcome.BUSY
    assert OperatorAction.objects.get().outcome == "busy"
    assert fresh(job).version == 1


@racing
def test_the_facts_are_what_was_found_under_the_lock():
    job = JobFactory(running=True, keyed=True)
    action("ask_to_stop", job)
    facts = OperatorAction.objects.get().facts
    assert (facts["fence"], facts["state"], facts["shard_key"]) == (job.fence, "running", "customer:7")
    assert 0 < facts["lease_seconds_left"] <= 60
    assert json.dumps(facts)
