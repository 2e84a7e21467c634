"""What a task does with its effects, and what is on record after each way to end."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from django.db import transaction

from pgqueue.exceptions import EffectRefusedError, LeaseLostError, OutcomeUnknownError, ResultError
from pgqueue.models import Attempt, Effect, Job, Queue
from pgqueue.protocol.effects import open_effect
from pgqueue.states import Stage, State
from pgqueue.testing import drain_jobs, expire_lease, run_jobs, take_over_now
from tests.factories import QueueFactory, from_now
from tests.testapp import effect_tasks
from tests.testapp.effect_tasks import Remote, idempotent, manual, manual_later, probed, undeclared

pytestmark = pytest.mark.django_db

POLICIES = pytest.mark.parametrize("task", [manual, idempotent, undeclared, probed], ids=lambda task: task.name)


@pytest.fixture
def remote() -> Remote:
    return Remote()


def enqueue(task: Any, body: Any) -> int:
    effect_tasks.script["run"] = body
    return int(task.enqueue().id)


def effect_of(id: int, name: str = "pay") -> Effect:
    return Effect.objects.get(job_id=id, name=name)


def job(id: int) -> Job:
    return Job.objects.get(pk=id)


def make_due(id: int) -> None:
    Job.objects.filter(pk=id).update(run_at=from_now(-1))


def run_once(id: int) -> State:
    make_due(id)
    (ran,) = run_jobs()
    assert ran.job_id == id
    return ran.state


def pay(remote: Remote, **options: Any) -> Any:
    return lambda context: context.effect("pay", remote, **options)


# the call


@POLICIES
def test_a_result_is_stored_with_its_reference_and_returned(task, remote):
    id = enqueue(task, pay(remote, reference=lambda sent: sent["id"]))
    (ran,) = run_jobs()
    assert (ran.state, ran.result) == (State.SUCCEEDED, {"id": "r1"})
    effect = effect_of(id)
    assert (effect.stage, effect.result, effect.remote_reference) == (Stage.RESULT_KNOWN, {"id": "r1"}, "r1")
    assert effect.operation_key == f"job:{id}:pay" == remote.asked[0]
    assert (job(id).stage, job(id).unknown_effects, job(id).replay_until) == (Stage.RESULT_KNOWN, 0, None)


@POLICIES
def test_the_unknown_outcome_is_on_record_before_the_call(task):
    seen = []

    def call(key):
        seen.append((effect_of(id).stage, job(id).stage, job(id).unknown_effects))
        return None

    id = enqueue(task, lambda context: context.effect("pay", call))
    run_jobs()
    assert seen == [(Stage.OUTCOME_UNKNOWN, Stage.OUTCOME_UNKNOWN, 1)]


@POLICIES
def test_a_later_attempt_gets_the_stored_result_without_a_call(task, remote):
    def body(context):
        sent = context.effect("pay", remote)
        if context.attempt == 1:
            raise RuntimeError("after the call")
        return sent

    id = enqueue(task, body)
    assert run_once(id) == State.RETRYING
    make_due(id)
    (ran,) = run_jobs()
    assert (ran.state, ran.result) == (State.SUCCEEDED, {"id": "r1"})
    assert len(remote.asked) == 1


def test_effects_come_in_order_each_with_a_row_of_its_own(remote):
    def body(context):
        return [context.effect("pay", remote)["id"], context.effect("mail", remote)["id"]]

    id = enqueue(manual, body)
    (ran,) = run_jobs()
    assert ran.result == ["r1", "r2"]
    assert remote.asked == [f"job:{id}:pay", f"job:{id}:mail"]
    assert [effect.name for effect in Effect.objects.order_by("id")] == ["pay", "mail"]


def test_the_worst_of_the_effects_is_the_stage_of_the_job(remote):
    remote.answers = [{"id": "a"}, ConnectionError("hung up")]

    def body(context):
        context.effect("pay", remote)
        with context.confirming("pay"):
            pass
        context.effect("mail", remote)

    id = enqueue(manual, body)
    run_jobs()
    assert (job(id).stage, job(id).unknown_effects) == (Stage.OUTCOME_UNKNOWN, 1)
    assert {effect.name: effect.stage for effect in Effect.objects.all()} == {
        "pay": Stage.CONFIRMED,
        "mail": Stage.OUTCOME_UNKNOWN,
    }


# how a run ends that leaves an effect unknown


def raises(remote: Remote) -> Any:
    remote.answers = [ConnectionError("hung up")] * 9
    return pay(remote)


def swallows(remote: Remote) -> Any:
    remote.answers = [ConnectionError("hung up")] * 9

    def body(context):
        try:
            context.effect("pay", remote)
        except ConnectionError:
            return "as if nothing had been"

    return body


def buries(remote: Remote) -> Any:
    remote.answers = [TypeError("what it answered makes no sense")] * 9
    return pay(remote)


@pytest.mark.parametrize("ending", [raises, swallows, buries])
@pytest.mark.parametrize("task", [manual, undeclared], ids=lambda task: task.name)
def test_an_effect_left_unknown_waits_for_a_person_however_the_run_ended(task, ending, remote):
    id = enqueue(task, ending(remote))
    assert run_once(id) == State.UNKNOWN
    assert (job(id).unknown_effects, job(id).probe_at, job(id).attempts) == (1, None, 0)
    attempt = Attempt.objects.get(job_id=id)
    assert (attempt.outcome, attempt.stage, attempt.number) == ("unknown", Stage.OUTCOME_UNKNOWN, 1)
    assert len(remote.asked) == 1


@pytest.mark.parametrize("ending", [raises, swallows])
def test_an_idempotent_task_calls_again_under_the_same_key_until_its_attempts_are_used_up(ending, remote):
    id = enqueue(idempotent, ending(remote))
    assert [run_once(id) for _ in range(3)] == [State.RETRYING, State.RETRYING, State.UNKNOWN]
    assert remote.asked == [f"job:{id}:pay"] * 3
    assert job(id).attempts == 2
    assert [attempt.outcome for attempt in Attempt.objects.order_by("id")] == ["failed", "failed", "unknown"]


def test_a_content_failure_over_an_unknown_effect_is_not_repeated(remote):
    id = enqueue(idempotent, buries(remote))
    assert run_once(id) == State.UNKNOWN


def test_a_replay_is_not_safe_for_ever(remote):
    id = enqueue(idempotent, raises(remote))
    assert run_once(id) == State.RETRYING
    Effect.objects.update(replay_until=from_now(-1))
    Job.objects.update(replay_until=from_now(-1))
    assert run_once(id) == State.UNKNOWN
    assert len(remote.asked) == 1, "the second run refused to call"
    assert Attempt.objects.last().error_class == "pgqueue.exceptions.OutcomeUnknownError"


def test_the_time_of_a_replay_counts_from_the_first_call(remote):
    id = enqueue(idempotent, raises(remote))
    run_once(id)
    first = effect_of(id)
    run_once(id)
    second = effect_of(id)
    assert (second.first_called_at, second.replay_until) == (first.first_called_at, first.replay_until)
    assert second.called_at > first.called_at
    assert second.deadline_at > first.deadline_at
    assert job(id).replay_until == first.replay_until


def test_a_swallowed_exception_says_what_is_unknown(remote):
    id = enqueue(manual, swallows(remote))
    run_once(id)
    assert job(id).last_error_class == "pgqueue.exceptions.OutcomeUnknownError"
    assert "'pay'" in job(id).last_error


def test_a_second_call_in_the_same_run_is_refused(remote):
    remote.answers = [ConnectionError("hung up")]

    def body(context):
        for _ in range(2):
            with contextlib.suppress(ConnectionError):
                context.effect("pay", remote)

    id = enqueue(manual, body)
    assert run_once(id) == State.UNKNOWN
    assert len(remote.asked) == 1
    assert job(id).last_error_class == "pgqueue.exceptions.OutcomeUnknownError"


@POLICIES
def test_a_stop_request_does_not_cancel_over_an_unknown_effect(task, remote):
    def body(context):
        Job.objects.update(stop_requested_at=from_now(-1))
        return raises(remote)(context)

    assert run_once(enqueue(task, body)) == State.UNKNOWN


@POLICIES
def test_a_stop_request_cancels_when_nothing_is_unknown(task, remote):
    def body(context):
        context.effect("pay", remote)
        Job.objects.update(stop_requested_at=from_now(-1))
        raise RuntimeError("stopping")

    assert run_once(enqueue(task, body)) == State.CANCELLED


# what proves that nothing has happened


class Busy(Exception):
    pass


@POLICIES
def test_a_refusal_that_proves_nothing_leaves_the_effect_to_be_called(task, remote):
    remote.answers = [Busy()]
    id = enqueue(task, pay(remote, did_not_happen=(Busy,)))
    assert run_once(id) == State.RETRYING
    assert (effect_of(id).stage, effect_of(id).called_at) == (Stage.NOT_CALLED, None)
    assert (job(id).stage, job(id).unknown_effects, job(id).attempts) == (Stage.NOT_CALLED, 0, 1)
    assert run_once(id) == State.SUCCEEDED
    assert len(remote.asked) == 2


def test_a_refused_replay_proves_nothing_about_the_first_call(remote):
    remote.answers = [ConnectionError("hung up"), Busy()]
    id = enqueue(idempotent, pay(remote, did_not_happen=(Busy,)))
    run_once(id)
    assert run_once(id) == State.RETRYING
    assert effect_of(id).stage == Stage.OUTCOME_UNKNOWN


def test_a_call_is_made_again_in_the_same_run_after_a_refusal(remote):
    remote.answers = [Busy()]

    def body(context):
        try:
            return context.effect("pay", remote, did_not_happen=(Busy,))
        except Busy:
            return context.effect("pay", remote)

    assert run_once(enqueue(manual, body)) == State.SUCCEEDED


# where no effect may begin


def test_nothing_is_called_inside_a_transaction_of_the_jobs_database(remote):
    errors = []

    def body(context):
        with transaction.atomic():
            QueueFactory(name="written")
            try:
                context.effect("pay", remote)
            except EffectRefusedError as error:
                errors.append(str(error))

    assert run_once(enqueue(manual, body)) == State.SUCCEEDED
    assert remote.asked == []
    assert "a transaction is open on database 'default'" in errors[0]
    assert not Effect.objects.exists()


def test_a_lease_that_may_have_run_out_is_noticed_before_the_call(remote):
    def body(context):
        expire_lease(context.job_id)
        context.effect("pay", remote)

    id = enqueue(manual, body)
    with pytest.raises(LeaseLostError):
        run_jobs(raise_errors=True)
    assert remote.asked == []
    assert not Effect.objects.filter(job_id=id).exists()


def test_a_lease_that_ran_out_while_the_call_was_written_down_leaves_it_uncalled(remote, monkeypatch):
    """Frozen between the COMMIT and the call: what is stored stays, as nobody may say that nothing was sent."""

    def body(context):
        held = context._held
        monkeypatch.setattr("pgqueue.effects.open_effect", lambda *args: _freeze(held, *args))
        context.effect("pay", remote)

    def _freeze(held, *args):
        answer = open_effect(*args)
        held.safe_until = 0.0
        return answer

    id = enqueue(manual, body)
    assert run_once(id) == State.UNKNOWN
    assert remote.asked == []


def test_a_superseded_worker_is_told_before_the_call_and_its_late_result_is_evidence(remote):
    def body(context):
        def call(key):
            expire_lease(context.job_id)
            assert take_over_now() == {context.job_id: State.UNKNOWN}
            return {"id": "late"}

        try:
            context.effect("pay", call, reference=lambda sent: sent["id"])
        except LeaseLostError:
            with pytest.raises(LeaseLostError):
                context.effect("mail", remote)
            raise

    id = enqueue(manual, body)
    run_jobs()
    assert remote.asked == []
    assert (job(id).state, effect_of(id).stage, effect_of(id).result) == (State.UNKNOWN, Stage.OUTCOME_UNKNOWN, None)
    attempt = Attempt.objects.get(job_id=id)
    assert attempt.outcome == "lost"
    effect, ending = attempt.evidence
    assert (effect["effect"], effect["remote_reference"], effect["result"]) == ("pay", "late", {"id": "late"})
    assert (ending["ending"], ending["error_class"]) == ("retry", "pgqueue.exceptions.LeaseLostError")


@pytest.mark.parametrize("name", ["", "x" * 101, "two\nlines", None])
def test_a_bad_name_is_refused(name, remote):
    id = enqueue(manual, lambda context: context.effect(name, remote))
    run_once(id)
    assert remote.asked == []
    assert "An effect's name is" in job(id).last_error


# results


def test_a_text_is_its_own_reference():
    id = enqueue(manual, lambda context: context.effect("pay", lambda key: "ch_9Q"))
    run_once(id)
    assert effect_of(id).remote_reference == "ch_9Q"


def test_what_cannot_be_stored_has_happened_all_the_same():
    id = enqueue(manual, lambda context: context.effect("pay", lambda key: object()))
    with pytest.raises(ResultError):
        run_jobs(raise_errors=True)
    assert (job(id).state, effect_of(id).stage) == (State.DEAD, Stage.RESULT_KNOWN)


def test_a_reference_that_cannot_be_picked_loses_nothing(remote):
    id = enqueue(manual, pay(remote, reference=lambda sent: sent["no such key"]))
    assert run_once(id) == State.SUCCEEDED
    assert (effect_of(id).result, effect_of(id).remote_reference) == ({"id": "r1"}, None)


# confirming


def test_the_writes_and_the_confirmation_are_one_transaction(remote):
    def body(context):
        context.effect("pay", remote)
        with context.confirming("pay") as is_first:
            assert is_first
            assert effect_of(context.job_id).stage == Stage.CONFIRMING
            QueueFactory(name="written")

    id = enqueue(manual, body)
    assert run_once(id) == State.SUCCEEDED
    assert (effect_of(id).stage, job(id).stage) == (Stage.CONFIRMED, Stage.CONFIRMED)
    assert effect_of(id).confirmed_at is not None


def test_a_confirmation_that_fails_writes_nothing_and_is_repeated(remote):
    def body(context):
        context.effect("pay", remote)
        with context.confirming("pay"):
            QueueFactory(name="written")
            if context.attempt == 1:
                raise RuntimeError("no")

    id = enqueue(manual, body)
    assert run_once(id) == State.RETRYING
    assert (effect_of(id).stage, Queue.objects.exists()) == (Stage.CONFIRMING, False)
    assert run_once(id) == State.SUCCEEDED
    assert Queue.objects.count() == 1
    assert len(remote.asked) == 1


def test_a_confirmation_is_not_repeated(remote):
    firsts = []

    def body(context):
        context.effect("pay", remote)
        with context.confirming("pay") as is_first:
            firsts.append(is_first)
            QueueFactory()
        if context.attempt == 1:
            raise RuntimeError("no")

    id = enqueue(manual, body)
    run_once(id)
    assert run_once(id) == State.SUCCEEDED
    assert firsts == [True, False]
    assert Queue.objects.count() == 1


def test_a_lost_lease_rolls_a_confirmation_back(remote):
    def body(context):
        context.effect("pay", remote)
        with context.confirming("pay"):
            QueueFactory()
            expire_lease(context.job_id)
            take_over_now()

    id = enqueue(manual, body)
    run_jobs()
    assert not Queue.objects.exists()
    # The takeover of this one session was rolled back with the writes: the lease still counted.
    assert effect_of(id).stage == Stage.CONFIRMING


def test_nothing_is_confirmed_without_a_result():
    def body(context):
        with context.confirming("pay"):
            raise AssertionError("not reached")

    id = enqueue(manual, body)
    with pytest.raises(OutcomeUnknownError):
        run_jobs(raise_errors=True)
    assert not Effect.objects.filter(job_id=id).exists()


# coroutine tasks


def test_a_coroutine_task_calls_and_gets_the_stored_result():
    asked = []

    async def call(key):
        asked.append(key)
        return {"id": "r1"}

    async def body(context):
        sent = await context.aeffect("pay", call)
        if context.attempt == 1:
            raise RuntimeError("after the call")
        return sent

    id = enqueue(manual_later, body)
    assert run_once(id) == State.RETRYING
    make_due(id)
    (ran,) = run_jobs()
    assert ran.result == {"id": "r1"}
    assert asked == [f"job:{id}:pay"]


def test_a_coroutine_call_that_fails_is_unknown_or_proves_nothing():
    async def call(key):
        raise Busy()

    async def body(context):
        try:
            await context.aeffect("pay", call, did_not_happen=(Busy,))
        except Busy:
            assert (await Effect.objects.aget(name="pay")).stage == Stage.NOT_CALLED
        await context.aeffect("pay", call)

    id = enqueue(manual_later, body)
    assert run_once(id) == State.UNKNOWN
    drain_jobs()
    assert effect_of(id).stage == Stage.OUTCOME_UNKNOWN
