"""What a job's page tells of its past."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from pgqueue.models import Job
from tests.admin.console import client_with, page
from tests.admin.test_pages import JOBS, plain
from tests.factories import AttemptFactory, EffectFactory, JobFactory, OperatorActionFactory, from_now

pytestmark = pytest.mark.django_db


def titles(client: Client, job: Job) -> list[str]:
    """Return what the timeline is made of."""
    return [entry["event"].title for entry in client.get(page(job)).context["timeline"]]


def test_every_attempt_wait_and_action_is_told_in_its_order(operator: Client) -> None:
    job = JobFactory(dead=True, created_at=from_now(-500), attempts=3)
    for number, ago in enumerate((400, 300, 200), start=1):
        AttemptFactory(job_id=job.pk, number=number, started_at=from_now(-ago), ended_at=from_now(-ago + 5))
    OperatorActionFactory(target_id=str(job.pk), verb="requeue", reason="again", ticket="OPS-1")
    assert titles(operator, job) == [
        "Created",
        "Attempt 1: failed",
        "Waited",
        "Attempt 2: failed",
        "Waited",
        "Attempt 3: failed",
        "ada: Requeue job, applied",
    ]
    said = plain(operator.get(page(job)))
    assert "(5.0 s)" in said
    assert "(95.0 s)" in said
    assert "again OPS-1 audit entry" in said
    assert said.count("no effect was begun: it is safe to run again") == 3


def test_the_line_of_no_return_and_the_reference_are_shown(operator: Client) -> None:
    job = JobFactory(unknown=True)
    AttemptFactory(job_id=job.pk, fence=job.fence, outcome="lost", stage="outcome_unknown", error_class=None)
    EffectFactory(job_id=job.pk, fence=job.fence, name="charge")
    known = from_now(-4)
    EffectFactory(
        job_id=job.pk, fence=job.fence, name="mail", stage="result_known", known_at=known, remote_reference="m_77"
    )
    said = plain(operator.get(page(job)))
    assert f"line of no return charge: may be sent from here on, key job:{job.pk}:charge" in said
    assert "charge: its outcome is unknown" in said
    assert "mail: result known, reference m_77" in said
    assert "a second run could do it twice" in said
    assert "safe to run again" not in said


@pytest.mark.parametrize("state", ["running", "succeeded"])
def test_an_attempt_without_a_row_is_told_by_the_job(state: str, operator: Client) -> None:
    job = JobFactory(**{state: True}, created_at=from_now(-100))
    assert titles(operator, job) == ["Created", f"Attempt 1: {state}"]
    assert f"fence {job.fence}" in plain(operator.get(page(job)))


def test_a_stop_request_is_worded_as_one(operator: Client) -> None:
    said = plain(operator.get(page(JobFactory(stop_requested=True))))
    assert "not yet acknowledged" in said
    assert "worker -101, " in said


@pytest.mark.case("M06")
def test_a_page_costs_the_same_whatever_happened(operator: Client) -> None:
    counted = []
    for attempts in (0, 30):
        job = JobFactory(dead=True)
        AttemptFactory.create_batch(attempts, job_id=job.pk)
        OperatorActionFactory.create_batch(attempts, target_id=str(job.pk))
        with CaptureQueriesContext(connection) as queries:
            answer = operator.get(page(job))
        counted.append(len([query for query in queries if "pgqueue_" in query["sql"]]))
    assert counted[0] <= 7
    assert counted[1] <= counted[0] + 1, "many attempts are counted"
    assert answer.context["older"]


def late(job: Job, **said: object) -> None:
    """Have a lost worker answer late for the job's attempt."""
    evidence = [{"effect": "charge", "remote_reference": "ch_late", "result": {"id": "S3CRET"}, **said}]
    evidence[0]["at"] = timezone.now().isoformat()
    AttemptFactory(
        job_id=job.pk, fence=job.fence, outcome="lost", stage="outcome_unknown", error_class=None, evidence=evidence
    )


def test_a_late_answer_stands_on_top_and_in_the_timeline_without_its_result(operator: Client) -> None:
    job = JobFactory(unknown=True)
    late(job)
    EffectFactory(job_id=job.pk, fence=job.fence, name="charge")
    said = plain(operator.get(page(job)))
    assert said.count("got an answer from charge after it had lost the job") == 2
    assert said.count("ch_late") == 2
    assert "late answer" in said
    assert "S3CRET" not in said


def test_a_late_answer_fills_in_the_verdict_that_it_supports(operator: Client) -> None:
    job = JobFactory(unknown=True)
    late(job)
    EffectFactory(job_id=job.pk, fence=job.fence, name="charge")
    form = operator.get(page(job, "verb", "happened")).content.decode()
    assert 'name="remote_reference"' in form
    assert 'value="ch_late"' in form
    assert "against_evidence" not in form


def test_a_verdict_against_a_late_answer_asks_for_a_second_word(operator: Client) -> None:
    job = JobFactory(unknown=True)
    late(job)
    EffectFactory(job_id=job.pk, fence=job.fence, name="charge", past=True)
    page_url = page(job, "verb", "did_not_happen")
    looked = operator.get(page_url)
    assert 'name="against_evidence"' in looked.content.decode()
    form = {"seen": looked.context["token"], "reason": "why", "typed": str(job.pk), "evidence": "asked them"}
    refused = operator.post(page_url, {**form, "effect": "charge"})
    assert refused.status_code == 409
    assert "confirm that you have read it" in plain(refused)
    again = {**form, "seen": operator.get(page_url).context["token"], "effect": "charge", "against_evidence": "yes"}
    assert operator.post(page_url, again).status_code == 303


def test_without_a_late_answer_there_is_nothing_to_overrule(operator: Client) -> None:
    job = JobFactory(unknown=True)
    EffectFactory(job_id=job.pk, fence=job.fence, name="charge", past=True)
    assert "against_evidence" not in operator.get(page(job, "verb", "did_not_happen")).content.decode()


def test_the_first_call_stays_in_the_timeline_after_the_verdict_that_it_did_not_happen(operator: Client) -> None:
    job = JobFactory(unknown=True)
    AttemptFactory(job_id=job.pk, fence=job.fence, outcome="unknown", stage="outcome_unknown", error_class=None)
    EffectFactory(job_id=job.pk, fence=job.fence, name="charge", past=True)
    page_url = page(job, "verb", "did_not_happen")
    form = {"seen": operator.get(page_url).context["token"], "reason": "why", "typed": str(job.pk)}
    answer = operator.post(page_url, {**form, "evidence": "asked them", "effect": "charge"})
    assert answer.status_code == 303
    said = plain(operator.get(page(job)))
    assert "line of no return charge: may be sent from here on" in said
    assert "charge: settled by a verdict: it did not happen" in said


def test_attempts_are_numbered_by_their_claims(operator: Client) -> None:
    job = JobFactory(running=True, created_at=from_now(-500))
    for ago in (400, 300):
        AttemptFactory(job_id=job.pk, number=1, outcome="lost", started_at=from_now(-ago), ended_at=from_now(-ago + 5))
    assert [title for title in titles(operator, job) if "Attempt" in title] == [
        "Attempt 1: lease lost",
        "Attempt 2: lease lost",
        "Attempt 3: running",
    ]
    assert plain(operator.get(page(job))).count("not charged") == 2


def test_a_verdict_is_no_attempt(operator: Client) -> None:
    job = JobFactory(succeeded=True, attempts=0)
    AttemptFactory(job_id=job.pk, outcome="unknown", stage="outcome_unknown", error_class=None)
    assert [title for title in titles(operator, job) if "Attempt" in title] == ["Attempt 1: outcome unknown"]


def test_an_honoured_stop_is_not_called_failed(operator: Client) -> None:
    job = JobFactory(cancelled=True)
    AttemptFactory(job_id=job.pk, failure_class="stopped")
    assert "Attempt 1: stopped as asked" in titles(operator, job)


def test_a_traceback_is_shown(operator: Client) -> None:
    job = JobFactory(dead=True)
    AttemptFactory(job_id=job.pk, traceback='File "shop/tasks.py", line 7, in charge')
    assert "line 7, in charge" in operator.get(page(job)).content.decode()


def test_forbidden_attempts_are_folded_and_push_no_deed_out(operator: Client) -> None:
    job = JobFactory(dead=True)
    OperatorActionFactory(target_id=str(job.pk), verb="hold", reason="the deed")
    OperatorActionFactory.create_batch(22, target_id=str(job.pk), outcome="forbidden", reason="ALL FIXED")
    said = plain(operator.get(page(job)))
    assert "the deed" in said
    assert "22 attempts were forbidden" in said
    assert "ALL FIXED" not in said


def test_messages_and_tracebacks_are_for_who_may_see_them() -> None:
    job = JobFactory(dead=True, last_error="customer=alice")
    AttemptFactory(job_id=job.pk, message="customer=alice", traceback="in charge(alice)")
    client = client_with("viewer", "view_job")
    for url in (page(job), JOBS, f"{JOBS}?state=dead"):
        assert "alice" not in client.get(url).content.decode()
    assert job.last_error_class.rpartition(".")[2] in plain(client.get(page(job)))


def test_reasons_in_the_timeline_are_for_who_may_read_the_audit_log() -> None:
    job = JobFactory(dead=True)
    OperatorActionFactory(target_id=str(job.pk), verb="hold", reason="S3CRET")
    assert "S3CRET" not in plain(client_with("viewer", "view_job").get(page(job)))
