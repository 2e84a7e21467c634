"""What happened wrongly is undone by the task that its author declared: once, and in the verdict's transaction."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client

from pgqueue import task
from pgqueue.compat import InvalidTask
from pgqueue.models import Effect, Job, JobPayload, OperationKey, OperatorAction
from pgqueue.operations import Action, Actor, act
from pgqueue.protocol.following import compensation_of
from pgqueue.states import Outcome
from tests.admin.console import audited, client_with, confirm_url, filled, make, page, token_for
from tests.admin.test_pages import plain
from tests.admin.test_verbs import CHARGE
from tests.factories import EffectFactory, JobFactory, OperationKeyFactory
from tests.inline import work
from tests.testapp.effect_tasks import refund

pytestmark = pytest.mark.django_db
REFUND = "tests.testapp.effect_tasks.refund"
NAME = "It happened wrongly: run the compensation"


def in_question(**columns: Any) -> Job:
    """Return a job of the task that charges, whose one effect is unknown."""
    row: Job = make("compensate", {"unknown": True, "task": CHARGE, **columns})
    return row


def post(client: Client, row: Job, **form: Any) -> Any:
    return client.post(confirm_url(row, "compensate"), filled(token_for(client, row, "compensate"), row, **form))


def compensate(row: Job, **given: Any) -> Action:
    params = {"effect": "sms", "remote_reference": "ch_9Q", "evidence": "the bank's statement"}
    params = {name: value for name, value in {**params, **given}.items() if value is not None}
    return act(
        "compensate", row.pk, version_seen=row.version, actor=Actor(id="1", name="ada"), reason="x", params=params
    )


def test_the_verdict_ends_the_job_and_enqueues_what_undoes_it(operator: Client) -> None:
    row = in_question(operation_key="order:5531")
    Effect.objects.update(operation_key="order:5531:sms")
    answer = post(operator, row, remote_reference="ch_9Q")
    job, undoing = Job.objects.order_by("id")
    assert (answer.status_code, answer.headers["Location"]) == (303, page(undoing))
    assert (job.state, job.stage, job.unknown_effects, job.version) == ("dead", "result_known", 0, row.version + 1)
    assert job.compensated_at is not None
    assert job.fence > row.fence
    effect = Effect.objects.get()
    assert (effect.stage, effect.remote_reference, effect.evidence) == (
        "result_known",
        "ch_9Q",
        "seen in its dashboard",
    )
    assert (undoing.task, undoing.state, undoing.parent_id) == (REFUND, "pending", job.pk)
    assert undoing.operation_key == "compensate:order:5531:sms"
    assert JobPayload.objects.get(pk=undoing.pk).kwargs == {
        "job_id": job.pk,
        "effect": "sms",
        "operation_key": "order:5531:sms",
        "remote_reference": "ch_9Q",
    }
    assert OperatorAction.objects.get().facts["new_job"] == undoing.pk
    said = plain(operator.get(page(job)))
    assert f"(new job {undoing.pk})" in said
    assert "another job was enqueued to undo what this one did" in said


@pytest.mark.django_db(transaction=True)
def test_a_worker_runs_it_as_declared() -> None:
    row = in_question()
    action = compensate(row)
    work()
    assert action.new_job_id is not None
    told = refund.get_result(str(action.new_job_id))
    assert told.return_value == [row.pk, "sms", f"job:{row.pk}:sms", "ch_9Q"]


def test_it_is_enqueued_once_whatever_is_clicked(operator: Client) -> None:
    row = in_question()
    form = filled(token_for(operator, row, "compensate"), row)
    for _ in range(2):
        assert operator.post(confirm_url(row, "compensate"), form).status_code == 303
    assert [told[2] for told in audited()] == ["applied", "replayed"]
    assert Job.objects.filter(task=REFUND).count() == 1
    # An effect that is in question again, however that came: its key is spent.
    Job.objects.filter(pk=row.pk).update(
        state="unknown", unknown_effects=1, stage="outcome_unknown", finished_at=None, compensated_at=None
    )
    Effect.objects.update(stage="outcome_unknown")
    row.refresh_from_db()
    action = compensate(row, remote_reference="ch_10")
    assert action.outcome == Outcome.APPLIED
    assert action.new_job_id == Job.objects.get(task=REFUND).pk
    assert Job.objects.count() == 2


def test_a_key_that_somebody_spent_before_is_not_spent_twice() -> None:
    row = in_question()
    earlier = JobFactory(task=REFUND, operation_key=f"compensate:job:{row.pk}:sms")
    OperationKeyFactory(job_id=earlier.pk, task=REFUND, key=earlier.operation_key)
    assert compensate(row).new_job_id == earlier.pk
    assert OperationKey.objects.count() == 1


def test_a_compensated_job_is_not_requeued_and_can_be_run_anew(operator: Client) -> None:
    row = in_question()
    compensate(row)
    row.refresh_from_db()
    why = "What it did was undone by another job: run again, it would go on as if that had not been."
    assert f"Requeue job: {why}" in plain(operator.get(page(row)))
    actor = Actor(id="1", name="ada")
    refused = act("requeue", row.pk, version_seen=row.version, actor=actor, reason="x")
    assert (refused.outcome, refused.why) == (Outcome.REFUSED_STATE, why)
    assert act("clone", row.pk, version_seen=row.version, actor=actor, reason="x").outcome == Outcome.APPLIED


def test_without_a_declaration_it_is_not_there(operator: Client) -> None:
    row = in_question(task="tests.testapp.tasks.add")
    assert NAME not in plain(operator.get(page(row)))
    assert NAME in plain(operator.get(page(in_question())))
    action = compensate(row)
    assert (action.outcome, action.why) == (
        Outcome.REFUSED_UNKNOWN,
        "Its task declares no compensation: nothing knows how to undo what it did.",
    )
    assert post(operator, row).status_code == 409
    assert compensate(in_question(task="tests.testapp.gone")).outcome == Outcome.REFUSED_UNKNOWN
    assert Job.objects.filter(task=REFUND).count() == 0


def test_what_else_is_unknown_comes_first() -> None:
    row = in_question(unknown_effects=2)
    EffectFactory(job_id=row.pk, name="mail", past=True)
    action = compensate(row)
    assert (action.outcome, action.why) == (
        Outcome.REFUSED_UNKNOWN,
        "The outcome of 1 other effect is unknown too.",
    )
    assert Job.objects.count() == 1


@pytest.mark.parametrize("effect", [None, "mail", ""])
def test_the_verdict_is_about_an_effect_in_question(effect: str | None) -> None:
    row = in_question()
    action = compensate(row, effect=effect)
    assert action.outcome == Outcome.REFUSED_UNKNOWN
    assert "The verdict must be about one effect whose outcome is unknown: sms." in str(action.why)
    assert Job.objects.count() == 1


def test_a_job_without_effects_has_nothing_to_undo() -> None:
    row = JobFactory(unknown=True, unknown_effects=0, task=CHARGE)
    assert compensate(row).why == "No effect's outcome is unknown: there is nothing to compensate."
    assert Job.objects.count() == 1


@pytest.mark.parametrize("lacking", ["evidence", "remote_reference"])
def test_it_needs_evidence_and_the_number_typed(lacking: str, operator: Client) -> None:
    row = in_question()
    refused = post(operator, row, **{lacking: ""})
    assert refused.status_code == 422
    assert [bool(field["problem"]) for field in refused.context["inputs"]].count(True) == 1
    assert post(operator, row, typed="1").status_code == 422
    assert post(client_with("op2", "view_job", "triage_unknown"), row).status_code == 403
    assert Job.objects.get().state == "unknown"


def test_nothing_is_enqueued_when_the_verdict_is_rolled_back(operator: Client, settings: Any) -> None:
    settings.PGQUEUE = {"TWO_PERSON_VERBS": ["compensate"]}
    row = in_question()
    assert post(operator, row).status_code == 303
    assert Job.objects.get().state == "unknown"
    assert not OperationKey.objects.exists()
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pgqueue_jobpayload")
        assert cursor.fetchone() == (0,)


def test_a_declaration_is_a_task_or_its_path() -> None:
    assert compensation_of(CHARGE) == REFUND
    assert compensation_of(REFUND) is None
    with pytest.raises(InvalidTask, match="compensation must be a task"):
        task(compensation=7)(refund.func)
    with pytest.raises(InvalidTask, match="nothing to compensate"):
        task(compensation=REFUND, recovery="transactional")(refund.func)
