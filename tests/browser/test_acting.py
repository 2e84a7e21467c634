"""Acting, with a mouse, with a keyboard, without JavaScript, and against somebody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pgqueue.bulk import run_in_background
from pgqueue.models import ApprovalRequest, BulkItem, Job, JobPayload, OperatorAction, Queue
from tests.admin.test_verbs import CHARGE
from tests.browser.conftest import Person
from tests.browser.seeding import seed
from tests.factories import EffectFactory, JobFactory, JobPayloadFactory, QueueFactory, WorkerFactory
from tests.races.rows import add_jobs

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
Bring = Callable[..., Person]
SCRIPTS = pytest.mark.parametrize("scripts", [True, False], ids=["js", "no-js"])
JOBS = "/admin/pgqueue/job/"


def confirm(who: Person, job: Any, verb: str = "requeue", reason: str = "provider is back") -> None:
    """Open a confirm page and type the reason."""
    who.go(f"{JOBS}{job.pk}/do/{verb}/")
    who.page.fill("#id_reason", reason)


def submit(who: Person) -> Any:
    """Press the button and return the answer's status."""
    with who.page.expect_response(lambda response: response.request.method == "POST") as answer:
        who.page.click(".submit-row input[type=submit]")
    who.page.wait_for_load_state()
    return answer.value.status


def outcomes() -> list[tuple[str, str]]:
    return list(OperatorAction.objects.order_by("id").values_list("actor_name", "outcome"))


@SCRIPTS
@pytest.mark.acceptance("A13", "A15", "A49")
def test_a_dead_job_is_requeued_from_its_page(scripts: bool, person: Bring) -> None:
    job = JobFactory(dead=True)
    who = person(java_script_enabled=scripts)
    who.go(f"{JOBS}{job.pk}/change/")
    who.page.click("text=Requeue job…")
    said = who.text()
    for fact in ("State", "Version", "Attempts", "Lease", "Stage reached", "Operation key"):
        assert fact in said
    who.page.fill("#id_reason", "provider is back")
    who.page.fill("#id_ticket", "OPS-415")
    assert submit(who) == 303
    assert "Requeue job: done. Audit entry" in who.text()
    after = Job.objects.get()
    assert (after.state, after.max_attempts) == ("pending", 9)
    row = OperatorAction.objects.get()
    assert (row.outcome, row.reason, row.ticket) == ("applied", "provider is back", "OPS-415")
    assert (row.version_seen, row.version_found, row.version_after) == (3, 3, 4)


@SCRIPTS
@pytest.mark.acceptance("A16", "A49")
def test_two_people_on_one_confirm_page_one_wins(scripts: bool, person: Bring) -> None:
    job = JobFactory(dead=True)
    first, second = (person(name, java_script_enabled=scripts) for name in ("op1", "op2"))
    confirm(first, job, reason="provider is back")
    confirm(second, job, reason="my own long reason")
    assert (submit(first), submit(second)) == (303, 409)
    said = second.text()
    assert "Changed since you looked: nothing was done." in said
    assert "Changed by op1: Requeue job, “provider is back”" in said
    assert "Failed, gave up" in said
    assert "Ready or scheduled" in said
    assert second.page.input_value("#id_reason") == "my own long reason"
    assert outcomes() == [("op1", "applied"), ("op2", "changed")]
    assert Job.objects.get().version == 4


@SCRIPTS
def test_what_two_persons_decide_is_asked_for_by_one_and_approved_by_the_other(
    scripts: bool, person: Bring, settings: Any
) -> None:
    settings.PGQUEUE = {**settings.PGQUEUE, "TWO_PERSON_VERBS": ["requeue"]}
    job = JobFactory(dead=True)
    first, second = (person(name, java_script_enabled=scripts) for name in ("op1", "op2"))
    confirm(first, job, reason="provider is back")
    assert "Nothing is done before somebody else approves it" in first.text()
    assert submit(first) == 303
    assert "Waits for approval by another person: Requeue job, asked for by op1" in first.text()
    assert Job.objects.get().state == "dead"
    second.go("/admin/pgqueue/overview/")
    second.page.click("text=1 request waits for approval")
    second.page.locator("#result_list tbody th a").first.click()
    second.page.click("text=Approve…")
    said = second.text()
    for fact in ("provider is back", f"job {job.pk}: Last error", f"job {job.pk}: Version"):
        assert fact in said
    second.page.fill("#id_reason", "checked")
    second.page.fill("#id_typed", str(ApprovalRequest.objects.get().pk))
    assert submit(second) == 303
    assert Job.objects.get().state == "pending"
    assert outcomes() == [("op1", "requested"), ("op2", "applied"), ("op1", "applied")]
    # He who asked finds out on the job's page, and cannot have approved it himself.
    first.go(f"{JOBS}{job.pk}/change/")
    assert "(approved by op2)" in first.text()


def test_a_purge_needs_the_number_and_leaves_a_page_that_says_so(person: Bring) -> None:
    job = JobFactory(dead=True, last_error="anna@example.org")
    JobPayloadFactory(job_id=job.pk, args=["anna@example.org"])
    who = person()
    who.go(f"{JOBS}{job.pk}/change/")
    assert "anna@example.org" in who.text()
    who.page.click("text=Purge arguments and result…")
    who.page.fill("#id_reason", "asked by the customer")
    who.page.fill("#id_typed", str(job.pk))
    assert submit(who) == 303
    said = who.text()
    assert "Purged at " in said
    assert "anna@example.org" not in who.page.content()
    assert not JobPayload.objects.exists()


def test_what_happened_wrongly_is_undone_by_a_new_job(person: Bring) -> None:
    job = JobFactory(unknown=True, task=CHARGE)
    EffectFactory(job_id=job.pk, fence=job.fence, past=True)
    who = person()
    who.go("/admin/pgqueue/reconcile/")
    who.page.locator("#result_list tbody th a").first.click()
    who.page.click("text=It happened wrongly: run the compensation…")
    for field, value in (("reason", "wrong card"), ("remote_reference", "ch_9Q"), ("evidence", "the bank's list")):
        who.page.fill(f"#id_{field}", value)
    who.page.fill("#id_typed", str(job.pk))
    assert submit(who) == 303
    undone, undoing = Job.objects.order_by("id")
    assert (undone.state, undoing.state, undoing.parent_id) == ("dead", "pending", job.pk)
    assert who.page.url.endswith(f"{JOBS}{undoing.pk}/change/")


@pytest.mark.acceptance("A14")
def test_without_a_reason_the_error_is_announced_and_has_the_focus(person: Bring) -> None:
    job = JobFactory(dead=True)
    who = person()
    confirm(who, job, reason="   ")
    assert submit(who) == 422
    assert who.page.evaluate("document.activeElement.id") == "pgqueue-error"
    assert who.page.get_attribute("#pgqueue-error", "role") == "alert"
    assert Job.objects.get().state == "dead"
    assert outcomes() == []


@pytest.mark.acceptance("A17")
def test_a_job_that_a_worker_took_meanwhile_is_left_alone(person: Bring) -> None:
    job = JobFactory()
    who = person()
    confirm(who, job, "hold")
    Job.objects.update(state="running", version=2, worker_id=17, lease_until="2099-01-01T00:00:00Z")
    assert submit(who) == 409
    assert "worker 17" in who.text()
    assert Job.objects.get().state == "running"
    assert outcomes() == [("op1", "changed")]


@pytest.mark.acceptance("A18")
def test_a_change_since_the_page_before_is_said(person: Bring) -> None:
    job = JobFactory()
    who = person()
    who.go(f"{JOBS}{job.pk}/change/")
    Job.objects.update(version=7)
    who.page.click("text=Hold job…")
    assert "It has changed since the page you came from" in who.text()


@pytest.mark.acceptance("A19")
def test_a_double_click_and_a_resubmit_are_one_attempt(person: Bring) -> None:
    job = JobFactory(dead=True)
    who = person()
    confirm(who, job)
    page = who.page
    form = page.evaluate("Object.fromEntries(new FormData(document.querySelector('#content form')))")
    page.dblclick(".submit-row input[type=submit]")
    page.wait_for_url("**/change/*")
    answer = who.context.request.post(f"{who.site}{JOBS}{job.pk}/do/requeue/", form=form)
    assert answer.status == 200
    assert "not done twice" in answer.text()
    found = [outcome for _name, outcome in outcomes()]
    assert found[0] == "applied"
    assert set(found[1:]) == {"replayed"}
    assert Job.objects.get().version == 4


@pytest.mark.acceptance("A22")
def test_asking_to_stop_is_worded_as_a_request(person: Bring) -> None:
    job = JobFactory(running=True)
    who = person()
    confirm(who, job, "ask_to_stop")
    assert submit(who) == 303
    assert "not yet acknowledged" in who.text()
    assert Job.objects.get().state == "running"


@SCRIPTS
@pytest.mark.acceptance("A39", "A40", "A49")
def test_all_that_match_are_frozen_previewed_and_run(scripts: bool, person: Bring) -> None:
    add_jobs(7, dead=True)
    changed = JobFactory(dead=True)
    who = person(java_script_enabled=scripts)
    who.go(f"{JOBS}?state=dead")
    who.page.select_option("#pgqueue-everything-verb", "requeue")
    who.page.click("text=Freeze and preview…")
    add_jobs(5, dead=True)
    Job.objects.filter(pk=changed.pk).update(version=9)
    who.page.reload()
    said = who.text()
    assert "7 jobs can be acted on" in said
    assert "1 will be skipped: Changed since the set was frozen." in said
    who.page.fill("#id_reason", "provider is back")
    who.page.fill("#id_spread", "10")
    submit(who)
    said = who.text()
    assert "7 applied" in said
    assert "1 changed meanwhile, nothing done" in said
    assert Job.objects.filter(state="dead").count() == 6
    assert Job.objects.filter(state="pending").count() == 7
    assert BulkItem.objects.filter(outcome="changed").get().job_id == changed.pk


@pytest.mark.acceptance("A40")
def test_ticked_rows_lead_to_a_frozen_set(person: Bring) -> None:
    add_jobs(3, dead=True)
    who = person()
    who.go(f"{JOBS}?state=dead")
    who.page.locator("input.action-select").nth(0).check()
    who.page.select_option("select[name=action]", "requeue")
    with who.page.expect_navigation():
        who.page.click("button[name=index]")
    assert "1 job can be acted on" in who.text()
    assert Job.objects.filter(state="dead").count() == 3


@SCRIPTS
@pytest.mark.acceptance("A43", "A49")
def test_ten_thousand_jobs_are_done_in_the_background_and_can_be_stopped(scripts: bool, person: Bring) -> None:
    """The test does a worker's part, chunk by chunk: `test_bulk_workers` has real ones."""
    add_jobs(10_000, dead=True)
    WorkerFactory()
    who = person(java_script_enabled=scripts)
    who.go(f"{JOBS}?state=dead")
    who.page.select_option("#pgqueue-everything-verb", "requeue")
    who.page.click("text=Freeze and preview…")
    who.page.wait_for_selector("#pgqueue-preview")
    assert "10000 jobs can be acted on" in who.text()
    who.page.fill("#id_reason", "provider is back")
    who.page.fill("#id_typed", "10000")
    assert submit(who) == 303
    assert "0 of 10000 rows have their outcome." in who.text()
    assert "Workers go on with it in the background" in who.text()
    assert [run_in_background() for _ in range(3)] == [200] * 3
    who.page.click("text=Refresh")
    assert "600 of 10000 rows have their outcome." in who.text()
    who.page.click("input[value=Stop]")
    assert "Stopped by op1." in who.text()
    assert run_in_background() == 0
    assert Job.objects.filter(state="pending").count() == 600
    who.page.click("text=Freeze the 9400 that were not done as a new set")
    assert "9400 jobs can be acted on" in who.text()


@pytest.mark.acceptance("A48")
def test_after_a_verb_the_list_is_as_it_was_left(person: Bring) -> None:
    add_jobs(60, dead=True)
    who = person()
    who.go(f"{JOBS}?state=dead")
    who.page.click("a[rel=next]")
    left = who.page.url
    who.page.locator("#result_list tbody th a").first.click()
    who.page.click("text=Requeue job…")
    who.page.fill("#id_reason", "x")
    submit(who)
    who.page.click("text=Back to the list")
    assert who.page.url == left


@pytest.mark.acceptance("A2", "A58")
def test_a_queue_is_paused_by_thumb(person: Bring) -> None:
    QueueFactory(name="emails")
    JobFactory(queue="emails")
    who = person(viewport={"width": 360, "height": 740}, has_touch=True)
    who.go("/admin/pgqueue/queue/")
    who.page.tap("#result_list a:text('emails')")
    who.page.tap("text=Pause queue…")
    who.page.fill("#id_reason", "SMTP provider is down")
    who.page.fill("#id_for_minutes", "90")
    who.page.tap(".submit-row input[type=submit]")
    who.page.wait_for_url("**/change/*")
    assert Queue.objects.get().pause_reason == "SMTP provider is down"
    for path in ("/admin/pgqueue/overview/", JOBS):
        who.go(path)
        said = who.text()
        assert "Queue “emails” was paused" in said
        assert "by op1: “SMTP provider is down”. It resumes in" in said


@pytest.mark.acceptance("A51")
def test_a_job_is_requeued_with_the_keyboard_alone(person: Bring) -> None:
    job = JobFactory(dead=True)
    who = person()
    keys = who.page.keyboard
    who.go("/admin/pgqueue/overview/")
    keys.press("g")
    with who.page.expect_navigation():
        keys.press("j")
    keys.press("/")
    assert who.page.evaluate("document.activeElement.id") == "searchbar"
    keys.type(str(job.pk))
    with who.page.expect_navigation():
        keys.press("Enter")
    tab_to(who, lambda: who.page.evaluate("document.activeElement.textContent") == str(job.pk))
    with who.page.expect_navigation():
        keys.press("Enter")
    tab_to(who, lambda: who.page.evaluate("document.activeElement.textContent").startswith("Requeue job"))
    assert who.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    with who.page.expect_navigation():
        keys.press("Enter")
    tab_to(who, lambda: who.page.evaluate("document.activeElement.id") == "id_reason")
    keys.type("provider is back")
    with who.page.expect_navigation():
        keys.press("Enter")
    assert Job.objects.get().state == "pending"


def tab_to(who: Person, there: Callable[[], bool]) -> None:
    for _ in range(80):
        who.page.keyboard.press("Tab")
        if there():
            return
    raise AssertionError("the keyboard does not lead there")


@pytest.mark.acceptance("A51")
def test_keys_have_a_help_and_an_off_switch(person: Bring) -> None:
    who = person()
    who.go("/admin/pgqueue/overview/")
    who.page.keyboard.press("?")
    assert who.page.locator("#pgqueue-help[open]").count() == 1
    who.page.locator("#pgqueue-keys input").uncheck()
    who.page.locator("h1").first.click()
    who.page.keyboard.press("g")
    who.page.keyboard.press("j")
    assert who.page.url.endswith("/overview/")


@pytest.mark.acceptance("A31", "A8")
def test_a_viewer_is_told_why_and_offered_nothing(person: Bring) -> None:
    rows = seed()
    who = person("viewer", "view_job", "view_queue", "view_bulkaction")
    who.go(f"{JOBS}{rows['dead'].pk}/change/")
    assert who.page.locator("a[href*='/do/']").count() == 0
    assert "Requeue job:" not in who.text()
    who.page.focus(".pgqueue-refused summary")
    who.page.keyboard.press("Enter")
    assert "Requeue job: You do not have the permission pgqueue.requeue_job." in who.text()
    assert who.go(f"{JOBS}{rows['dead'].pk}/do/requeue/").status == 403
    who.go(JOBS)
    assert who.page.locator("select[name=action], #pgqueue-everything-verb").count() == 0
