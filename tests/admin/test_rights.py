"""The read-only switch, the hook for single objects, the groups, and what is told of refusals."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.test import Client

from pgqueue.conf import problems
from pgqueue.management.commands.pgqueue_console_groups import groups
from pgqueue.models import Job, OperatorAction
from tests.admin.console import VERBS, audited, client_of, client_with, confirm_url, filled, make, page, token_for
from tests.admin.test_pages import JOBS, plain
from tests.admin.test_verbs import TARGETS
from tests.factories import JobFactory, OperatorActionFactory, QueueFactory

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("verb", VERBS)
def test_the_read_only_switch_takes_every_verb_from_everybody(verb: str, settings: Any) -> None:
    root = client_of(User.objects.create_superuser("root"))
    row = make(verb, TARGETS[verb]["applied"])
    form = filled(token_for(root, row, verb), row)
    settings.PGQUEUE = {"CONSOLE_READ_ONLY": True}
    shown = root.get(page(row))
    assert "/do/" not in shown.text
    assert "The console is read-only at the moment" in plain(shown)
    assert root.get(confirm_url(row, verb)).status_code == 403
    assert root.post(confirm_url(row, verb), form).status_code == 403
    assert [outcome for _verb, _id, outcome, _reason in audited()] == ["forbidden"]
    assert type(row).objects.get(pk=row.pk).version == row.version


def not_payments(user: Any, verb: str, queue: str, task: str | None) -> bool:
    return queue != "payments" and task != "payments"


@pytest.mark.parametrize("verb", VERBS)
def test_the_hook_is_asked_for_each_object(verb: str, operator: Client, settings: Any) -> None:
    name = {"queue": {"name": "payments"}, "job": {"queue": "payments"}, "limit": {"id": "task:payments"}}
    name |= {"request": name["job"], "worker": {"queues": ["mail", "payments"]}}
    if verb == "set_weight":
        pytest.skip("only tenants have one, and a tenant is of no queue or task")
    mine = make(verb, TARGETS[verb]["applied"])
    other = make(verb, {**TARGETS[verb]["applied"], **name[VERBS[verb].kind]})
    settings.PGQUEUE = {"CONSOLE_AUTHORIZE": "tests.admin.test_rights.not_payments"}
    assert "You may not do this in its queue." in plain(operator.get(page(other)))
    assert "token" not in operator.get(confirm_url(other, verb)).context or not operator.get(
        confirm_url(other, verb)
    ).context.get("token")
    for row, status in ((mine, 303), (other, 403)):
        assert operator.post(confirm_url(row, verb), filled(token_for(operator, row, verb), row)).status_code == status
    assert [outcome for done, _id, outcome, _reason in audited() if done == verb] == ["applied", "forbidden"]
    assert type(other).objects.get(pk=other.pk).version == other.version


def test_a_hook_that_cannot_be_imported_is_a_fault_of_the_settings() -> None:
    found = [problem.message for problem in problems({"CONSOLE_AUTHORIZE": "tests.nowhere.f"})]
    assert len(found) == 1
    assert "cannot be imported" in found[0]
    assert list(problems({"CONSOLE_AUTHORIZE": "tests.admin.test_rights.not_payments"})) == []


def test_the_groups_are_made_once_and_brought_up_to_date() -> None:
    for _ in range(2):
        call_command("pgqueue_console_groups", stdout=StringIO())
    senior = Group.objects.get(name="Job queue: senior")
    senior.permissions.clear()
    call_command("pgqueue_console_groups", stdout=StringIO())
    for name, codenames in groups().items():
        held = Group.objects.get(name=name).permissions.values_list("codename", flat=True)
        assert set(held) == set(codenames), name
    assert Group.objects.count() == 5


@pytest.mark.parametrize("role", ["viewer", "triage", "operator", "senior", "auditor"])
@pytest.mark.parametrize("verb", VERBS)
def test_each_role_can_do_what_its_level_allows(role: str, verb: str) -> None:
    call_command("pgqueue_console_groups", stdout=StringIO())
    user = User.objects.create_user(role, is_staff=True)
    user.groups.add(Group.objects.get(name=f"Job queue: {role}"))
    client = client_of(user)
    row = make(verb, TARGETS[verb]["applied"])
    highest = {"viewer": 0, "triage": 1, "operator": 2, "senior": 3, "auditor": 0}[role]
    may = VERBS[verb].level <= highest
    assert (f"/do/{verb}/" in client.get(page(row)).text) == may
    assert client.get(confirm_url(row, verb)).status_code == (200 if may else 403)
    answer = client.post(confirm_url(row, verb), filled(token_for(client, row, verb), row))
    assert answer.status_code == (303 if may else 403)
    found = [outcome for done, _id, outcome, _reason in audited() if done == verb]
    assert found == ["applied" if may else "forbidden"]


def test_who_comes_too_late_is_told_who_was_first(operator: Client) -> None:
    row = JobFactory(dead=True)
    second = client_with("op2", "requeue_job", "view_job", "view_operatoraction")
    token = second.get(confirm_url(row, "requeue")).context["token"]
    form = filled(operator.get(confirm_url(row, "requeue")).context["token"], row, reason="provider is back")
    operator.post(confirm_url(row, "requeue"), form)
    answer = second.post(confirm_url(row, "requeue"), filled(token, row, reason="my own words"))
    assert answer.status_code == 409
    said = plain(answer)
    assert "Changed by op1: Requeue job, “provider is back” OPS-1" in said
    assert page(OperatorAction.objects.order_by("id").first()) in answer.text
    assert 'value="my own words"' in answer.text


def test_a_done_action_links_to_its_entry_and_is_among_the_recent_ones(operator: Client) -> None:
    row = JobFactory()
    answer = operator.post(confirm_url(row, "hold"), filled(token_for(operator, row, "hold"), row), follow=True)
    assert page(OperatorAction.objects.get()) in answer.text
    assert LogEntry.objects.get().object_id == str(row.pk)


def test_after_a_verb_the_list_is_found_as_it_was_left(operator: Client) -> None:
    left = "state=dead&after=WzFd"
    row = JobFactory(dead=True)
    shown = operator.get(page(row), {"_changelist_filters": left})
    offers = shown.context["offers"]
    url = next(offer.url for offer in offers if "requeue" in offer.url)
    answer = operator.post(url, filled(operator.get(url).context["token"], row), follow=True)
    assert f'href="{JOBS}?state=dead&amp;after=WzFd"' in answer.text


def test_a_pause_can_end_by_itself(operator: Client) -> None:
    row = QueueFactory()
    url = confirm_url(row, "pause_queue")
    form = filled(operator.get(url).context["token"], row)
    refused = operator.post(url, {**form, "for_minutes": "-5"})
    assert refused.status_code == 422
    assert 'value="-5"' in refused.text
    assert operator.post(url, {**form, "for_minutes": "90"}).status_code == 303
    row.refresh_from_db()
    assert round((row.paused_until - row.paused_at).total_seconds()) == 5400
    # The same page again, with another end: that is another request, and is told so.
    again = operator.post(url, {**form, "for_minutes": "5"})
    assert again.status_code == 409
    assert "used before, with other values" in plain(again)


def test_a_requeued_job_can_wait_first(operator: Client) -> None:
    row = JobFactory(dead=True)
    url = confirm_url(row, "requeue")
    form = filled(operator.get(url).context["token"], row, delay_minutes="10")
    assert operator.post(url, form).status_code == 303
    assert 590 < (Job.objects.get().run_at - row.finished_at).total_seconds() < 660


def test_who_may_not_look_leaves_no_words_and_one_row_a_minute() -> None:
    row = JobFactory(dead=True)
    nobody = client_with("nobody")
    for _ in range(5):
        nobody.post(confirm_url(row, "requeue"), {"reason": "ALL FIXED"})
    (refusal,) = OperatorAction.objects.values_list("outcome", "reason")
    assert refusal == ("forbidden", "-")


def test_a_result_in_the_audit_log_is_for_who_may_see_results() -> None:
    action = OperatorActionFactory(verb="happened", params={"result": '{"card": "S3CRET"}', "effect": "charge"})
    said = client_with("viewer", "view_operatoraction").get(page(action)).content.decode()
    assert "S3CRET" not in said
    assert "charge" in said
    may = client_with("senior", "view_operatoraction", "view_job_args").get(page(action)).content.decode()
    assert "S3CRET" in may
