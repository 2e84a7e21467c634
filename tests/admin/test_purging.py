"""One ended job without what may be personal: what goes, what stays, and that nothing brings it back."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client

from pgqueue import enqueue_many
from pgqueue.compat import TaskResultDoesNotExist
from pgqueue.exceptions import JobPurgedError
from pgqueue.models import ApprovalRequest, Attempt, Effect, Job, JobPayload, JobResult, Probe
from pgqueue.operations import Actor, act
from pgqueue.protocol.deciding import keep_evidence
from pgqueue.states import Outcome, Stage
from tests.admin.console import audited, client_with, confirm_url, filled, page, token_for
from tests.admin.test_bulk import freeze
from tests.admin.test_pages import plain
from tests.factories import (
    ApprovalRequestFactory,
    AttemptFactory,
    EffectFactory,
    JobFactory,
    JobPayloadFactory,
    OperationKeyFactory,
    ProbeFactory,
    from_now,
)
from tests.races.rows import add_jobs
from tests.testapp.tasks import echo

pytestmark = pytest.mark.django_db
SECRET = "anna@example.org"


def a_job_full_of_secrets(**traits: Any) -> Job:
    """Return an ended job that has one wherever there is room for it."""
    job: Job = JobFactory(**(traits or {"dead": True}), last_error=SECRET, stage=Stage.CONFIRMED)
    JobPayloadFactory(job_id=job.pk, args=[SECRET], kwargs={"to": SECRET}, trace={"by": SECRET})
    JobResult.objects.create(job_id=job.pk, value=SECRET)
    AttemptFactory(job_id=job.pk, message=SECRET, traceback=SECRET, evidence=[{"result": SECRET}])
    EffectFactory(job_id=job.pk, stage=Stage.CONFIRMED, result={"to": SECRET}, evidence=SECRET, remote_reference="m_77")
    ProbeFactory(job_id=job.pk, detail=SECRET)
    ApprovalRequestFactory(about=job, params={"evidence": SECRET})
    OperationKeyFactory(job_id=job.pk)
    return job


def everything() -> str:
    """Return all rows of all tables of the queue, as text."""
    with connection.cursor() as cursor:
        tables = [name for name in connection.introspection.table_names(cursor) if name.startswith("pgqueue_")]
        found = []
        for table in tables:
            cursor.execute(f"SELECT string_agg(t::text, '|') FROM {table} AS t")
            found.append(str(cursor.fetchone()[0]))
    return "\n".join(found)


def purge(client: Client, job: Job) -> Any:
    return client.post(confirm_url(job, "purge"), filled(token_for(client, job, "purge"), job))


@pytest.mark.parametrize("state", ["succeeded", "dead", "cancelled"])
def test_nothing_personal_is_left_and_the_neighbour_keeps_his(state: str, operator: Client) -> None:
    job = a_job_full_of_secrets(**{state: True})
    other = JobFactory(dead=True, last_error="other")
    JobPayloadFactory(job_id=other.pk, args=["other"])
    AttemptFactory(job_id=other.pk, message="other")
    assert SECRET in everything()
    assert purge(operator, job).status_code == 303
    assert SECRET not in everything()
    assert JobPayload.objects.get().args == Attempt.objects.get(job_id=other.pk).message.split()
    assert Job.objects.get(pk=other.pk).last_error == "other"


def test_what_the_other_side_knows_it_by_stays(operator: Client) -> None:
    job = a_job_full_of_secrets()
    purge(operator, job)
    row = Job.objects.get(pk=job.pk)
    assert (row.state, row.version, row.last_error_class) == ("dead", job.version + 1, job.last_error_class)
    effect = Effect.objects.get()
    assert (effect.remote_reference, effect.operation_key, effect.stage) == ("m_77", f"job:{job.pk}:sms", "confirmed")
    assert Attempt.objects.get().error_class is not None
    assert Probe.objects.get().effect == "sms"
    assert audited() == [("purge", str(job.pk), "applied", "the provider is back")]


def test_the_page_says_so_and_offers_no_second_run(operator: Client) -> None:
    job = a_job_full_of_secrets()
    purge(operator, job)
    said = plain(operator.get(page(job)))
    assert "Purged at " in said
    assert "The audit log says who did it, and why." in said
    for label in ("Requeue job", "Run again as a new job", "Purge arguments and result"):
        assert f"{label}: It was purged: its arguments are gone, and it cannot run again." in said
    row = Job.objects.get(pk=job.pk)
    for verb in ("requeue", "clone", "purge"):
        action = act(verb, row.pk, version_seen=row.version, actor=Actor(id="1", name="ada"), reason="x")
        assert (action.outcome, action.why) == (
            Outcome.REFUSED_STATE,
            "It was purged: its arguments are gone, and it cannot run again.",
        )
    preview = operator.get(page(freeze(operator))).context["preview"]
    assert (preview["can"], preview["left"]) == (0, 1)


def test_its_result_is_a_clear_error_and_its_key_stays_spent() -> None:
    task = echo.using(operation_key="receipt:7")
    result = task.enqueue(SECRET)
    Job.objects.update(state="succeeded", finished_at=from_now(-1))
    job = Job.objects.get()
    assert echo.get_result(result.id).args == [SECRET]
    act("purge", job.pk, version_seen=job.version, actor=Actor(id="1", name="ada"), reason="asked by the customer")
    with pytest.raises(TaskResultDoesNotExist, match=f"Job {job.pk} was purged: its arguments") as told:
        echo.get_result(result.id)
    assert isinstance(told.value.__cause__, JobPurgedError)
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
    assert task.enqueue(SECRET).id == result.id
    assert Job.objects.count() == 1


def test_a_late_result_does_not_come_back(operator: Client, session: Any) -> None:
    job = a_job_full_of_secrets()
    purge(operator, job)
    attempt = Attempt.objects.get()
    late = {"id": job.pk, "fence": attempt.fence, "worker_id": attempt.worker_id}
    keep_evidence(session, **late, evidence={"result": SECRET})
    assert SECRET not in everything()


def test_who_may_see_no_arguments_may_still_not_purge_without_the_permission() -> None:
    job = a_job_full_of_secrets()
    client = client_with("op2", "view_job", "view_job_args", "requeue_job", "clone_job")
    assert purge(client, job).status_code == 403
    assert JobPayload.objects.exists()


def test_a_purge_that_two_persons_decide_leaves_nothing_either(operator: Client, settings: Any) -> None:
    settings.PGQUEUE = {"TWO_PERSON_VERBS": ["purge"]}
    job = a_job_full_of_secrets()
    assert purge(operator, job).status_code == 303
    assert JobPayload.objects.exists()
    asked = ApprovalRequest.objects.get(verb="purge")
    second = client_with("op2", "purge_job", "approve_action", "view_job", "view_approvalrequest")
    answer = second.post(confirm_url(asked, "approve"), filled(token_for(second, asked, "approve"), asked))
    assert answer.status_code == 303
    assert SECRET not in everything()


def test_lists_and_exports_show_a_purged_job(operator: Client) -> None:
    enqueue_many([echo.bind(SECRET)])
    Job.objects.update(state="succeeded", finished_at=from_now(-1))
    job = Job.objects.get()
    assert SECRET in operator.get(page(job)).text
    purge(operator, job)
    add_jobs(1)
    assert SECRET not in operator.get(page(job)).text
    assert operator.get("/admin/pgqueue/job/").status_code == 200
