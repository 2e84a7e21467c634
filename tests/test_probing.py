"""Asking the other side what became of an effect."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connections

from pgqueue import CannotTell, DidNotHappen, Happened, StillGoing, registry, task
from pgqueue.compat import InvalidTask
from pgqueue.enqueueing import enqueue_many
from pgqueue.models import Effect, Job, Probe
from pgqueue.operations import Actor, act
from pgqueue.probing import ask_next
from pgqueue.protocol.borrowing import borrowed
from pgqueue.protocol.lending import lender
from pgqueue.states import Outcome, Stage, State
from pgqueue.testing import run_jobs
from tests.factories import EffectFactory, JobFactory, JobPayloadFactory, from_now
from tests.inline import work
from tests.testapp import effect_tasks
from tests.testapp.effect_tasks import Remote, probed

quick = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
pytestmark = quick

NAME = "tests.testapp.effect_tasks.probed"
WORKER = -101


def nothing(context: Any) -> None: ...


def unknown_job(*, effects: tuple[str, ...] = ("sms",), past: bool = True, **shape: Any) -> Job:
    job = JobFactory(
        **{"probing": True, "probe_at": from_now(-1), "task": NAME, "unknown_effects": len(effects), **shape}
    )
    for name in effects:
        EffectFactory(job_id=job.pk, name=name, past=past)
    return job


def answer(with_: Any) -> None:
    """Let the probe answer so: with a value, an exception, or what a function of the context and effect says."""

    def ask(context: Any, effect: Any) -> Any:
        if isinstance(with_, BaseException):
            raise with_
        return with_(context, effect) if callable(with_) else with_

    effect_tasks.script["ask"] = ask


def ask_one() -> tuple[int, State | None] | None:
    return ask_next(lambda: borrowed("default"), worker_id=WORKER, tasks=(NAME,), call=lambda ask: ask())


def fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def test_it_happened_and_the_job_resumes_with_the_result():
    remote = Remote()
    remote.answers = [ConnectionError("hung up")]
    effect_tasks.script["run"] = lambda context: [context.effect("pay", remote), context.attempt]
    id = int(probed.enqueue().id)
    (ran,) = run_jobs()
    assert ran.state == State.UNKNOWN
    assert Job.objects.get(pk=id).probe_at is not None
    answer(Happened({"id": "ch_1"}, reference="ch_1"))
    assert ask_one() == (id, State.RETRYING)
    effect = Effect.objects.get(job_id=id)
    assert (effect.stage, effect.remote_reference, effect.settled_by) == (Stage.RESULT_KNOWN, "ch_1", "probe")
    (ran,) = run_jobs()
    assert (ran.state, ran.result) == (State.SUCCEEDED, [{"id": "ch_1"}, 1])
    assert len(remote.asked) == 1


def test_it_did_not_happen_and_is_called_again():
    job = unknown_job()
    answer(DidNotHappen())
    assert ask_one() == (job.pk, State.RETRYING)
    assert (fresh(job).unknown_effects, fresh(job).attempts) == (0, 0)
    assert Effect.objects.get().stage == Stage.NOT_CALLED


def test_a_no_is_not_believed_before_the_calls_deadline():
    job = unknown_job(past=False)
    answer(DidNotHappen())
    assert ask_one() == (job.pk, State.UNKNOWN)
    row = fresh(job)
    assert Effect.objects.get().stage == Stage.OUTCOME_UNKNOWN
    assert row.probe_at > Effect.objects.get().deadline_at, "asked again when a no can be believed"
    assert "call may take effect for" in Probe.objects.get().detail


def test_it_is_asked_again_when_it_is_still_going():
    job = unknown_job()
    answer(StillGoing(retry_in=120))
    assert ask_one() == (job.pk, State.UNKNOWN)
    row = fresh(job)
    assert row.version == job.version
    assert row.probe_at > job.probe_at
    assert ask_one() is None


def test_a_probe_that_cannot_tell_leaves_it_to_a_person():
    job = unknown_job()
    answer(CannotTell("their log is gone"))
    assert ask_one() == (job.pk, State.UNKNOWN)
    row = fresh(job)
    assert (row.probe_at, row.version) == (None, job.version + 1)
    assert (Probe.objects.get().answer, Probe.objects.get().detail) == ("cannot_tell", "their log is gone")


@pytest.mark.parametrize("wrong", [ConnectionError("no answer, password=hunter2"), "yes", SystemError()])
def test_an_answer_that_is_none_is_asked_for_again_with_a_backoff(wrong):
    job = unknown_job()
    answer(wrong)
    assert ask_one() == (job.pk, State.UNKNOWN)
    assert fresh(job).probe_at > job.probe_at
    probe = Probe.objects.get()
    assert probe.answer == "error"
    assert "hunter2" not in probe.detail


@pytest.mark.parametrize("with_", [StillGoing(0), ConnectionError("no answer")])
def test_after_the_last_question_a_person_must_decide(with_, settings):
    settings.PGQUEUE = {**settings.PGQUEUE, "MAX_PROBES": 3}
    job = unknown_job(probes=2)
    answer(with_)
    ask_one()
    assert fresh(job).probe_at is None
    assert "That was the last of 3 questions" in Probe.objects.get().detail


def test_a_question_uses_no_attempt_and_changes_no_version():
    job = unknown_job(keyed=True, lane=2)
    answer(StillGoing(1))
    ask_one()
    row = fresh(job)
    assert (row.state, row.attempts, row.version, row.worker_id) == (State.UNKNOWN, job.attempts, job.version, None)
    assert (row.fence > job.fence, row.probes) == (True, 1)


def test_a_probe_is_told_what_it_asks_about():
    job = unknown_job(operation_key="order:7")
    JobPayloadFactory(job_id=job.pk, args=[42], kwargs={"b": 1})
    told = []
    answer(lambda context, effect: told.append((context, effect)) or CannotTell())
    ask_one()
    [(context, effect)] = told
    assert (context.job_id, context.operation_key, context.args, context.kwargs) == (job.pk, "order:7", [42], {"b": 1})
    assert context.fence == fresh(job).fence
    assert (effect.name, effect.key) == ("sms", f"job:{job.pk}:sms")


def test_effects_are_asked_about_one_after_the_other():
    job = unknown_job(effects=("sms", "mail"))
    asked = []
    answer(lambda context, effect: asked.append(effect.name) or Happened())
    assert ask_one() == (job.pk, State.UNKNOWN)
    assert ask_one() == (job.pk, State.RETRYING)
    assert asked == ["sms", "mail"]


def test_a_verdict_given_meanwhile_wins_and_the_late_answer_is_kept():
    """The operator's verdict comes while the other side is asked."""
    job = unknown_job()
    given = {"effect": "sms", "remote_reference": "ch_9", "evidence": "their dashboard"}

    def asked(context, effect):
        answer_ = act(
            "happened_finish",
            job.pk,
            version_seen=job.version,
            actor=Actor(id="1", name="ada"),
            reason="why",
            params=given,
        )
        assert answer_.outcome == Outcome.APPLIED, "a question under way changes nothing of what an operator saw"
        return DidNotHappen()

    answer(asked)
    assert ask_one() == (job.pk, None)
    assert (fresh(job).state, Effect.objects.get().remote_reference) == (State.SUCCEEDED, "ch_9")
    assert Probe.objects.get().detail.startswith("Too late")


def test_a_lost_question_is_asked_again_and_its_answer_is_too_late():
    job = unknown_job()
    answer(lambda context, effect: lose_and_ask_again(job))
    assert ask_one() == (job.pk, None)
    assert fresh(job).state == State.RETRYING
    assert [probe.answer for probe in Probe.objects.order_by("id")] == ["did_not_happen", "happened"]


def lose_and_ask_again(job: Job) -> Any:
    """The first prober is frozen past its lease; another asks and is answered; then the first goes on."""
    Job.objects.update(probe_at=from_now(-1))
    answer(Happened())
    assert ask_one() == (job.pk, State.RETRYING)
    return DidNotHappen()


def test_only_what_this_process_can_ask_for_is_asked():
    unknown_job(task="tests.testapp.tasks.gone")
    unknown_job(probe_at=None)
    unknown_job(probe_at=from_now(60))
    assert ask_one() is None


# in a worker


@committing
def test_a_worker_asks_beside_its_jobs():
    """With its only thread taken, so that no job's slot is used."""
    remote = Remote()
    remote.answers = [ConnectionError("hung up")]
    asked = threading.Event()

    def body(context):
        if context.task_result.args == ["hold"]:
            assert asked.wait(20)
            return None
        return context.effect("pay", remote)

    def ask(context, effect):
        asked.set()
        return Happened({"id": "found"})

    effect_tasks.script.update(run=body, hold=body, ask=ask)
    id = int(probed.enqueue("run").id)
    probed.enqueue("hold")
    work(concurrency=1)
    while Job.objects.get(pk=id).state == State.RETRYING:
        work(concurrency=1)
    job = Job.objects.get(pk=id)
    assert (job.state, probed.get_result(str(id)).return_value) == (State.SUCCEEDED, {"id": "found"})
    assert len(remote.asked) == 1


@committing
def test_a_probe_that_takes_too_long_is_left_behind(settings):
    settings.PGQUEUE = {**settings.PGQUEUE, "PROBE_TIMEOUT_SECONDS": 0.2}
    job = unknown_job()
    let_go = threading.Event()
    answer(lambda context, effect: let_go.wait(20) and Happened())
    try:
        asked = ask_next(lambda: lender.lend("default"), worker_id=WORKER, tasks=(NAME,))
    finally:
        let_go.set()
        lender.close()
    assert asked == (job.pk, State.UNKNOWN)
    assert "took longer than 0.2 seconds" in Probe.objects.get().detail
    connections.close_all()


# what a declaration needs


def test_a_task_that_is_to_be_probed_needs_its_probe_before_it_is_enqueued(monkeypatch):
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    unasked = task(recovery="probe", takes_context=True)(nothing)
    for enqueue in (unasked.enqueue, lambda: enqueue_many([unasked.bind()])):
        with pytest.raises(InvalidTask, match=r"no probe: declare one with @nothing\.probe"):
            enqueue()


def test_only_a_task_that_is_to_be_probed_has_a_probe():
    with pytest.raises(InvalidTask, match="declare it as 'probe'"):
        effect_tasks.manual.probe(lambda context, effect: Happened())


@pytest.mark.parametrize("recovery", ["manual", "probe"])
def test_a_policy_that_decides_by_effects_needs_the_context(recovery):
    with pytest.raises(InvalidTask, match="add takes_context=True"):
        task(recovery=recovery)(nothing)
