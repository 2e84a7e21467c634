"""Jobs whose outcome is unknown: what each verdict makes of them, and which verdicts are refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections

from pgqueue.models import Attempt, Effect, Job, JobPayload, OperatorAction
from pgqueue.operations import Action, Actor, act
from pgqueue.protocol.connecting import connect
from pgqueue.protocol.deciding import keep_evidence
from pgqueue.refusals import IdempotencyKeyReusedError, VerbParamsError
from pgqueue.states import Lane, Outcome, Recovery, Stage, State
from pgqueue.testing import run_jobs
from pgqueue.verbs import VERBS
from tests.factories import AttemptFactory, EffectFactory, JobFactory, from_now
from tests.statements.doing import columns
from tests.testapp import effect_tasks
from tests.testapp.effect_tasks import Remote, manual

quick = pytest.mark.django_db
racing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
ADA = Actor(id="1", name="ada")
BOB = Actor(id="2", name="bob")
PROOF = {"remote_reference": "ch_9Q", "evidence": "seen in the provider's dashboard"}
GIVEN: dict[str, dict[str, Any]] = {
    "happened": {"effect": "sms", **PROOF},
    "happened_finish": {"effect": "sms", **PROOF},
    "did_not_happen": {"effect": "sms", "evidence": "the provider's log has no such key"},
    "give_up_unknown": {},
    "ask_again": {},
    "take": {},
    "hand_over": {"to": "bob"},
    "snooze": {"for_seconds": 3600},
}


def unknown_job(*, effects: tuple[str, ...] = ("sms",), **shape: Any) -> Job:
    job = JobFactory(unknown=True, unknown_effects=len(effects), **shape)
    for name in effects:
        EffectFactory(job_id=job.pk, name=name, past=True)
    return job


def do(verb: str, job: Job, *, given: dict[str, Any] | None = None, **changes: Any) -> Action:
    params = GIVEN[verb] if given is None else given
    return act(
        verb, job.pk, **{"version_seen": job.version, "actor": ADA, "reason": "why", "params": params, **changes}
    )


def fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def effect_of(job: Job, name: str = "sms") -> Effect:
    return Effect.objects.get(job_id=job.pk, name=name)


pytestmark = quick


# one verdict


@pytest.mark.parametrize(
    ("verb", "state", "stage"),
    [
        ("happened", State.RETRYING, Stage.RESULT_KNOWN),
        ("happened_finish", State.SUCCEEDED, Stage.RESULT_KNOWN),
        ("did_not_happen", State.RETRYING, Stage.NOT_CALLED),
        ("give_up_unknown", State.DEAD, Stage.OUTCOME_UNKNOWN),
    ],
)
def test_a_verdict_settles_the_effect_and_the_job(verb, state, stage):
    job = unknown_job(taken_by="bob", attempts=2)
    answer = do(verb, job)
    row = fresh(job)
    assert (answer.outcome, answer.state_found, answer.state_after) == (Outcome.APPLIED, State.UNKNOWN, state)
    assert (row.state, row.stage, row.unknown_effects, row.attempts) == (state, stage, 0, 2)
    assert (row.version, row.taken_by, row.probe_at) == (job.version + 1, None, None)
    assert row.fence > job.fence, "an answer of a probe that was under way comes too late"
    assert (row.finished_at is not None) == (state in (State.SUCCEEDED, State.DEAD))
    assert effect_of(job).stage == stage


def test_what_is_said_to_have_happened_is_stored_with_its_evidence():
    job = unknown_job()
    do("happened", job, given={**GIVEN["happened"], "result": {"id": "ch_9Q"}})
    effect = effect_of(job)
    assert (effect.remote_reference, effect.result) == ("ch_9Q", {"id": "ch_9Q"})
    assert (effect.settled_by, effect.evidence) == ("ada", PROOF["evidence"])
    assert effect.known_at is not None
    (row,) = OperatorAction.objects.all()
    assert row.params["evidence"] == PROOF["evidence"]
    assert row.facts["effects"][0]["name"] == "sms"


def test_the_job_goes_on_with_the_result_without_a_second_call_or_a_charged_attempt():
    remote = Remote()
    remote.answers = [ConnectionError("hung up")]
    effect_tasks.script["run"] = lambda context: [context.effect("pay", remote), context.attempt]
    id = int(manual.enqueue().id)
    run_jobs()
    job = Job.objects.get(pk=id)
    do("happened", job, given={**PROOF, "effect": "pay", "result": {"id": "ch_9Q"}})
    (ran,) = run_jobs()
    assert (ran.state, ran.result) == (State.SUCCEEDED, [{"id": "ch_9Q"}, 1])
    assert len(remote.asked) == 1
    assert [(attempt.number, attempt.outcome) for attempt in Attempt.objects.filter(job_id=id)] == [(1, "unknown")]
    assert Job.objects.get(pk=id).attempts == 1


def test_what_did_not_happen_is_called_again_once():
    remote = Remote()
    remote.answers = [ConnectionError("hung up")]
    effect_tasks.script["run"] = lambda context: context.effect("pay", remote)
    id = int(manual.enqueue().id)
    run_jobs()
    Effect.objects.update(deadline_at=from_now(-1))
    do("did_not_happen", Job.objects.get(pk=id), given={"effect": "pay", "evidence": "asked them"})
    (ran,) = run_jobs()
    assert (ran.state, ran.result) == (State.SUCCEEDED, {"id": "r2"})
    assert remote.asked == [f"job:{id}:pay"] * 2


def test_a_stop_request_ends_with_the_verdict():
    job = unknown_job(stop_requested_at=from_now(-1))
    do("happened", job)
    assert (fresh(job).state, fresh(job).stop_requested_at) == (State.RETRYING, None)


# a late answer speaks against a verdict


def answered_late(job: Job, *, effect: str = "sms") -> Attempt:
    attempt = AttemptFactory(job_id=job.pk, outcome="lost", stage="outcome_unknown", error_class=None)
    keep(job, attempt, effect=effect)
    job.refresh_from_db()
    return attempt


def keep(job: Job, attempt: Attempt, *, effect: str = "sms") -> None:
    said = {"effect": effect, "remote_reference": "ch_late", "result": {"id": "ch_late", "card": "4242"}}
    with connect("default", role="test") as connection:
        keep_evidence(connection, id=job.pk, fence=attempt.fence, worker_id=attempt.worker_id, evidence=said)


@racing
@pytest.mark.parametrize("verb", ["did_not_happen", "give_up_unknown"])
def test_a_verdict_against_a_late_answer_is_refused_until_that_is_said(verb):
    job = unknown_job()
    answered_late(job)
    before = columns(job)
    answer = do(verb, job)
    assert (answer.outcome, columns(job)) == (Outcome.REFUSED_UNKNOWN, before)
    assert "ch_late" in answer.why
    assert "confirm that you have read it" in answer.why
    told = {**GIVEN[verb], "against_evidence": True}
    assert do(verb, job, given=told).outcome == Outcome.APPLIED
    assert OperatorAction.objects.latest("id").params["against_evidence"] is True


@racing
def test_a_late_answer_of_another_effect_does_not_speak_against_a_verdict():
    job = unknown_job()
    answered_late(job, effect="mail")
    assert do("did_not_happen", job).outcome == Outcome.APPLIED


@racing
def test_a_late_answer_bumps_the_version_so_that_who_has_not_seen_it_changes_nothing():
    job = unknown_job()
    attempt = AttemptFactory(job_id=job.pk, outcome="lost", stage="outcome_unknown", error_class=None)
    keep(job, attempt)
    assert do("happened", job).outcome == Outcome.CHANGED
    assert fresh(job).version == job.version + 1


@racing
def test_a_late_answer_does_not_wait_for_who_holds_the_job():
    job = unknown_job()
    attempt = AttemptFactory(job_id=job.pk, outcome="lost", stage="outcome_unknown", error_class=None)
    with connect("default", role="test") as other, other.transaction():
        other.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [job.pk])
        keep(job, attempt)
    attempt.refresh_from_db()
    assert attempt.evidence[0]["remote_reference"] == "ch_late"


@racing
def test_what_is_on_record_of_a_late_answer_holds_no_result():
    job = unknown_job()
    answered_late(job)
    do("happened", job)
    facts = OperatorAction.objects.latest("id").facts
    assert facts["late_answers"][0]["remote_reference"] == "ch_late"
    assert "4242" not in str(facts)


def test_a_call_that_did_not_happen_stays_on_record():
    job = unknown_job()
    called_at = effect_of(job).called_at
    do("did_not_happen", job)
    (call,) = effect_of(job).earlier_calls
    assert (datetime.fromisoformat(call["called_at"]), call["became"]) == (called_at, "did_not_happen")
    assert call["fence"] == effect_of(job).fence


# a verdict is about one effect


def test_the_job_waits_until_the_last_effect_is_settled():
    job = unknown_job(effects=("sms", "mail"), taken_by="ada")
    assert do("happened", job).state_after == State.UNKNOWN
    row = fresh(job)
    assert (row.unknown_effects, row.stage, row.taken_by) == (1, Stage.OUTCOME_UNKNOWN, "ada")
    assert effect_of(job, "mail").stage == Stage.OUTCOME_UNKNOWN
    given = {**GIVEN["did_not_happen"], "effect": "mail"}
    assert do("did_not_happen", row, given=given).state_after == State.RETRYING
    assert (fresh(job).unknown_effects, fresh(job).stage) == (0, Stage.RESULT_KNOWN)


def test_a_job_is_not_finished_while_another_effect_is_unknown():
    job = unknown_job(effects=("sms", "mail"))
    before = columns(job)
    answer = do("happened_finish", job)
    assert (answer.outcome, columns(job)) == (Outcome.REFUSED_UNKNOWN, before)
    assert answer.why == "The outcome of 1 other effect is unknown too."


@pytest.mark.parametrize("effect", ["mail", None])
@pytest.mark.parametrize("verb", ["happened", "did_not_happen"])
def test_a_verdict_on_something_else_changes_nothing(verb, effect):
    job = unknown_job()
    given = {name: value for name, value in {**GIVEN[verb], "effect": effect}.items() if value is not None}
    before = columns(job)
    answer = do(verb, job, given=given)
    assert (answer.outcome, columns(job)) == (Outcome.REFUSED_UNKNOWN, before)
    assert "about one effect whose outcome is unknown: sms" in answer.why


def test_an_effect_that_is_settled_is_not_settled_again():
    job = unknown_job(effects=("sms", "mail"))
    do("happened", job)
    before = columns(job)
    assert do("happened", fresh(job)).outcome == Outcome.REFUSED_UNKNOWN
    assert columns(job) == before


def test_it_did_not_happen_is_heard_only_after_the_calls_deadline():
    job = JobFactory(unknown=True)
    EffectFactory(job_id=job.pk, deadline_at=from_now(120))
    before = columns(job)
    answer = do("did_not_happen", job)
    assert (answer.outcome, columns(job)) == (Outcome.REFUSED_UNKNOWN, before)
    assert "may still be under way: ask again in 1" in answer.why
    assert do("happened", job).outcome == Outcome.APPLIED, "that it happened can be known at once"


@pytest.mark.parametrize("verb", ["happened", "happened_finish", "did_not_happen"])
def test_a_verdict_needs_evidence(verb):
    job = unknown_job()
    for missing in VERBS[verb].needs:
        given = {**GIVEN[verb], missing: "  "}
        with pytest.raises(VerbParamsError, match=missing):
            do(verb, job, given=given)
    assert not OperatorAction.objects.exists()


# a job that lost its lease without any effect on record


def test_an_undeclared_job_without_effects_is_settled_without_naming_one():
    for verb, state in (("happened_finish", State.SUCCEEDED), ("did_not_happen", State.RETRYING)):
        job = JobFactory(unknown=True, unknown_effects=0, stage=Stage.NOT_CALLED, recovery=Recovery.UNDECLARED)
        given = {name: value for name, value in GIVEN[verb].items() if name != "effect"}
        assert do(verb, job, given=given).state_after == state
        assert fresh(job).stage == Stage.NOT_CALLED


def test_such_a_job_is_given_up_like_any_other():
    job = JobFactory(unknown=True, unknown_effects=0, stage=Stage.NOT_CALLED, recovery=Recovery.UNDECLARED)
    assert do("give_up_unknown", job).outcome == Outcome.REFUSED_UNKNOWN
    assert do("give_up", job, given={}).state_after == State.DEAD


# given up for ever


@pytest.mark.parametrize("verb", ["requeue", "clone"])
def test_a_job_given_up_with_an_unknown_effect_is_never_run_again(verb):
    job = unknown_job()
    do("give_up_unknown", job)
    before = columns(job)
    answer = do(verb, fresh(job), given={})
    assert (answer.outcome, columns(job)) == (Outcome.REFUSED_STATE, before)
    assert "may have happened" in answer.why


@pytest.mark.parametrize("verb", ["give_up", "cancel", "requeue", "hold", "clone"])
def test_an_unknown_job_can_be_neither_ended_nor_repeated_as_if_nothing_were(verb):
    job = unknown_job()
    before = columns(job)
    assert do(verb, job, given={}).outcome == Outcome.REFUSED_UNKNOWN
    assert columns(job) == before


# who looks after it


def test_a_job_is_taken_handed_over_and_snoozed():
    job = unknown_job()
    do("take", job)
    assert fresh(job).taken_by == "ada"
    do("hand_over", fresh(job))
    assert fresh(job).taken_by == "bob"
    do("snooze", fresh(job))
    row = fresh(job)
    assert (row.taken_by, row.state, row.version) == ("bob", State.UNKNOWN, job.version + 3)
    assert row.snoozed_until is not None
    do("take", row)
    assert fresh(job).snoozed_until is None


def test_triage_needs_no_reason_and_a_verdict_does():
    job = unknown_job()
    assert do("take", job, reason="").outcome == Outcome.APPLIED
    with pytest.raises(ValueError, match="needs a reason"):
        do("happened", fresh(job), reason="")


def test_the_other_side_is_asked_again_where_it_can_be_asked():
    job = unknown_job(probing=True, probes=7)
    do("ask_again", job)
    assert (fresh(job).probe_at <= Job.objects.get(pk=job.pk).probe_at, fresh(job).probes) == (True, 0)
    answer = do("ask_again", unknown_job())
    assert answer.outcome == Outcome.REFUSED_UNKNOWN
    assert "Nobody can be asked" in answer.why


# clone


@pytest.mark.parametrize("shape", [{"succeeded": True}, {"dead": True}, {"cancelled": True}])
def test_an_ended_job_runs_again_as_a_new_one(shape):
    job = JobFactory(**shape, tenant="acme", lane=Lane.LANED, operation_key="once", priority=3)
    JobPayload.objects.create(job_id=job.pk, args=[1, 2])
    answer = do("clone", job, given={})
    new = Job.objects.get(pk=answer.new_job_id)
    assert (new.state, new.cloned_from_id, new.operation_key, new.attempts) == (State.PENDING, job.pk, None, 0)
    assert (new.task, new.queue, new.tenant, new.lane, new.priority) == (job.task, "default", "acme", Lane.LANED, 3)
    assert JobPayload.objects.get(job_id=new.pk).args == [1, 2]
    assert (fresh(job).state, fresh(job).version) == (job.state, job.version + 1)
    assert do("clone", job, given={}).outcome == Outcome.CHANGED, "one look clones once"
    assert Job.objects.count() == 2


@pytest.mark.parametrize("shape", [{}, {"running": True}, {"paused": True}, {"succeeded": True}])
def test_a_clone_has_other_arguments_and_the_first_job_stays_as_it_is(shape):
    job = JobFactory(**shape, operation_key="once")
    JobPayload.objects.create(job_id=job.pk, args=[1, 2])
    answer = do("clone", job, given={"new_args": [7], "new_kwargs": {"right": 8}})
    assert answer.outcome == Outcome.APPLIED
    new = Job.objects.get(pk=answer.new_job_id)
    assert (new.state, new.cloned_from_id, new.operation_key) == (State.PENDING, job.pk, None)
    payload = JobPayload.objects.get(job_id=new.pk)
    assert (payload.args, payload.kwargs) == ([7], {"right": 8})
    assert JobPayload.objects.get(job_id=job.pk).args == [1, 2]
    assert (fresh(job).state, fresh(job).version) == (job.state, job.version + 1)
    assert list(OperatorAction.objects.get().params) == ["arguments"], "no argument is on record, only a digest"


def test_a_clone_may_have_no_arguments_or_its_first_ones():
    job = JobFactory(succeeded=True, task="tests.testapp.tasks.nothing_known")
    JobPayload.objects.create(job_id=job.pk, args=[1, 2])
    bare = do("clone", job, given={"new_args": []})
    assert not JobPayload.objects.filter(job_id=bare.new_job_id).exists()
    named = do("clone", fresh(job), given={"new_kwargs": {"a": 1}})
    assert (payload := JobPayload.objects.get(job_id=named.new_job_id)).args is None
    assert payload.kwargs == {"a": 1}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"new_args": {"a": 1}}, "is no list"),
        ({"new_kwargs": [1]}, "is no object"),
        ({"new_args": ["\0"]}, "cannot be stored"),
        ({"new_args": ["x" * 2_000_000]}, "cannot be stored"),
        ({"new_args": [1, 2, 3]}, "does not fit the task"),
        ({"new_kwargs": {"c": 1}}, "does not fit the task"),
    ],
)
def test_arguments_that_no_job_could_have_are_refused_before_anything_is_written(given, says):
    job = JobFactory(succeeded=True)
    with pytest.raises(VerbParamsError, match=says):
        do("clone", job, given=given)
    assert (Job.objects.count(), OperatorAction.objects.count(), fresh(job).version) == (1, 0, job.version)


@pytest.mark.parametrize("shape", [{"running": True}, {"retrying": True, "recovery": Recovery.IDEMPOTENT}])
def test_a_job_with_an_effect_that_may_have_happened_is_not_cloned(shape):
    job = JobFactory(**shape, stage=Stage.OUTCOME_UNKNOWN, unknown_effects=1)
    EffectFactory(job_id=job.pk)
    answer = do("clone", job, given={"new_args": [1]})
    assert (answer.outcome, Job.objects.count()) == (Outcome.REFUSED_UNKNOWN, 1)
    assert "must be reconciled first" in answer.why


def test_the_same_clone_asked_for_twice_is_one_and_with_other_arguments_an_error():
    job = JobFactory(succeeded=True)
    asked = {"version_seen": job.version, "actor": ADA, "reason": "r", "idempotency_key": "k"}
    first = act("clone", job.pk, params={"new_args": [1, 2]}, **asked)
    assert act("clone", job.pk, params={"new_args": [1, 2]}, **asked).outcome == Outcome.REPLAYED
    with pytest.raises(IdempotencyKeyReusedError):
        act("clone", job.pk, params={"new_args": [1, 3]}, **asked)
    assert first.new_job_id == Job.objects.latest("id").pk


def test_other_arguments_do_not_wait_for_a_second_person(settings):
    settings.PGQUEUE = {"TWO_PERSON_VERBS": ["clone"]}
    with pytest.raises(VerbParamsError, match="second person"):
        do("clone", JobFactory(succeeded=True), given={"new_args": [1, 2]})
    assert not OperatorAction.objects.exists()


# the shell


def test_the_shell_has_the_verdicts(capsys):
    job = unknown_job()
    words = ("--reason", "asked them", "--effect", "sms", "--evidence", "their log", "--actor", "ada")
    with pytest.raises(CommandError, match="remote_reference"):
        call_command("pgqueue_act", "happened", str(job.pk), "--seen", str(job.version), *words)
    more = ("--remote-reference", "ch_9Q", "--result", '{"id": 1}')
    call_command("pgqueue_act", "happened", str(job.pk), "--seen", str(job.version), *words, *more)
    assert "outcome=applied" in capsys.readouterr().out
    assert effect_of(job).result == {"id": 1}


def test_the_shell_says_why_nothing_was_done(capsys):
    job = JobFactory(unknown=True)
    EffectFactory(job_id=job.pk, deadline_at=from_now(120))
    words = ("--seen", str(job.version), "--reason", "r", "--effect", "sms", "--evidence", "e", "--actor", "ada")
    with pytest.raises(CommandError):
        call_command("pgqueue_act", "did_not_happen", str(job.pk), *words)
    assert "outcome=refused_unknown" in (told := capsys.readouterr().out)
    assert "may still be under way" in told


def test_the_shell_tells_the_clones_number(capsys):
    job = JobFactory(succeeded=True)
    words = ("--seen", str(job.version), "--reason", "r", "--actor", "ada")
    call_command("pgqueue_act", "clone", str(job.pk), *words)
    assert f"new_job={Job.objects.latest('id').pk}" in capsys.readouterr().out


# at the same moment


def together(*calls: Any) -> list[Action]:
    """Run calls at once, each on a thread and so a connection of its own."""

    def run(call: Any) -> Action:
        try:
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls))


@racing
def test_two_operators_with_different_verdicts_one_applies_and_one_has_changed(settings):
    settings.PGQUEUE = {**settings.PGQUEUE, "LOCK_TIMEOUT_SECONDS": 20}
    for _ in range(5):
        job = unknown_job()
        answers = together(
            lambda job=job: do("happened_finish", job),
            lambda job=job: do("did_not_happen", job, actor=BOB),
        )
        assert sorted(answer.outcome for answer in answers) == [Outcome.APPLIED, Outcome.CHANGED]
        winner = next(answer for answer in answers if answer.outcome == Outcome.APPLIED)
        assert fresh(job).state == winner.state_after
        assert fresh(job).version == job.version + 1


@racing
def test_fifty_calls_with_one_key_apply_once(settings):
    settings.PGQUEUE = {**settings.PGQUEUE, "LOCK_TIMEOUT_SECONDS": 5}
    job = unknown_job()

    def call() -> Action:
        answer = do("happened", job, idempotency_key="once")
        while answer.outcome == Outcome.BUSY:
            answer = do("happened", job, idempotency_key="once")
        return answer

    answers = together(*[call] * 50)
    outcomes = [answer.outcome for answer in answers]
    assert (outcomes.count(Outcome.APPLIED), outcomes.count(Outcome.REPLAYED)) == (1, 49)
    assert OperatorAction.objects.filter(outcome=Outcome.APPLIED).count() == 1
    assert OperatorAction.objects.filter(outcome=Outcome.REPLAYED).count() == 49
    assert fresh(job).version == job.version + 1
