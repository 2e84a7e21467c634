"""What a job's page tells of its past."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pgqueue.models import Job
from tests.admin.console import page
from tests.admin.test_pages import plain
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
    assert counted[0] == counted[1] <= 6
    assert answer.context["older"]
