"""What one person asks for and another one has to approve: who may, what is shown, and that nobody gets round it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pgqueue.admin.words import verb_words
from pgqueue.bulk import start
from pgqueue.conf import problems
from pgqueue.management.commands.pgqueue_act import NOT_DONE, REQUESTED
from pgqueue.models import ApprovalRequest, BulkAction, BulkItem, Job, OperatorAction, Queue
from pgqueue.operations import Actor, act
from pgqueue.states import Outcome
from tests.admin.console import (
    EVERYTHING,
    REASON,
    VERBS,
    audited,
    client_with,
    columns,
    confirm_url,
    filled,
    make,
    page,
    token_for,
)
from tests.admin.test_bulk import DONE, freeze, outcomes, step
from tests.admin.test_needs import needs
from tests.admin.test_pages import plain
from tests.admin.test_verbs import TARGETS
from tests.factories import ApprovalRequestFactory, JobFactory, QueueFactory, from_now

pytestmark = pytest.mark.django_db
LIST = "/admin/pgqueue/approvalrequest/"
SECOND = ("requeue_job", "approve_action", "view_job", "view_approvalrequest", "view_operatoraction", "view_overview")


@pytest.fixture(autouse=True)
def two_persons(settings: Any) -> None:
    settings.PGQUEUE = {"TWO_PERSON_VERBS": ["requeue", "pause_queue"]}


@pytest.fixture
def second(db: None) -> Client:
    """Somebody else, who may approve and requeue."""
    return client_with("op2", *SECOND)


def ask(client: Client, row: Any, verb: str = "requeue", **form: Any) -> ApprovalRequest:
    """Post a verb that needs a second person and return the request that waits."""
    answer = client.post(confirm_url(row, verb), filled(token_for(client, row, verb), row, **form))
    assert answer.status_code == 303
    return ApprovalRequest.objects.latest("id")


def decide(client: Client, asked: ApprovalRequest, verb: str = "approve", **form: Any) -> Any:
    """Post a decision as its page is filled."""
    form = {"reason": "checked with the bank", **form}
    return client.post(confirm_url(asked, verb), filled(token_for(client, asked, verb), asked, **form))


def test_one_asks_another_approves_and_both_are_on_record(operator: Client, second: Client) -> None:
    row = JobFactory(dead=True)
    shown = plain(operator.get(confirm_url(row, "requeue")))
    assert "Nothing is done before somebody else approves it" in shown
    asked = ask(operator, row)
    assert Job.objects.get().state == "dead"
    assert "asked for. Nothing is done before somebody else approves it." in plain(operator.get(page(row)))
    assert decide(second, asked).status_code == 303
    job = Job.objects.get()
    assert (job.state, job.version) == ("pending", row.version + 1)
    told = OperatorAction.objects.order_by("id").values_list("actor_name", "verb", "target_kind", "outcome", "reason")
    assert list(told) == [
        ("op1", "requeue", "job", "requested", REASON),
        ("op2", "approve", "request", "applied", "checked with the bank"),
        ("op1", "requeue", "job", "applied", REASON),
    ]
    assert OperatorAction.objects.get(verb="requeue", outcome="applied").facts["approved_by"] == "op2"
    assert "(approved by op2)" in plain(second.get(page(row)))
    asked.refresh_from_db()
    assert (asked.state, asked.decided_by) == ("approved", "op2")
    assert "approved by op2" in plain(second.get(LIST))


@pytest.mark.parametrize("verb", [name for name, verb in VERBS.items() if verb.kind != "request"])
def test_every_verb_can_be_asked_for_and_approved(verb: str, operator: Client, settings: Any) -> None:
    settings.PGQUEUE = {"TWO_PERSON_VERBS": [verb]}
    row = make(verb, TARGETS[verb]["applied"])
    before = columns(row)
    asked = ask(operator, row, verb)
    assert columns(row) == before
    second = client_with("op2", *EVERYTHING)
    assert str(verb_words(verb)) in plain(second.get(page(row)))
    token = second.get(confirm_url(asked, "approve")).context["token"]
    answer = second.post(confirm_url(asked, "approve"), filled(token, asked))
    assert (answer.status_code, answer.headers["Location"]) == (303, page(asked))
    assert [(done, outcome) for done, _id, outcome, _reason in audited()] == [
        (verb, "requested"),
        ("approve", "applied"),
        (verb, "applied"),
    ]
    after = columns(row)
    assert after is None or after["version"] == row.version + 1
    assert second.get(page(asked)).status_code == 200


def test_what_waits_is_seen_where_it_matters(operator: Client, second: Client) -> None:
    row, other = JobFactory(dead=True), JobFactory(dead=True)
    asked = ask(operator, row)
    said = plain(second.get(page(row)))
    assert f"Waits for approval by another person: Requeue job, asked for by op1: “{REASON}”." in said
    assert page(asked) in second.get(page(row)).text
    assert "Waits for approval" not in plain(second.get(page(other)))
    (need,) = needs(second)
    assert need.startswith("1 request waits for approval, for ")
    assert f"(Requeue job, job {row.pk}, asked for by op1)" in need
    assert f"job {row.pk}" in plain(second.get(LIST, {"state": "waiting"}))
    decide(second, asked, "decline")
    assert needs(second) == []
    assert "Waits for approval" not in plain(second.get(page(row)))
    assert f"job {row.pk}" not in plain(second.get(LIST, {"state": "waiting"}))
    assert Job.objects.get(pk=row.pk).state == "dead"


def test_the_page_to_approve_on_shows_the_same_facts(operator: Client, second: Client) -> None:
    row = JobFactory(dead=True)
    asked = ask(operator, row, delay_minutes="10")
    facts = {str(label): now for label, now, _was in second.get(confirm_url(asked, "approve")).context["facts"]}
    assert facts["Asked by"] == "op1"
    assert facts["Reason"] == REASON
    assert facts["Given: delay_seconds"] == "600.0"
    mine = operator.get(confirm_url(row, "requeue")).context["facts"]
    assert {f"job {row.pk}: {label}": now for label, now, _was in mine}.items() <= facts.items()


def test_nobody_approves_what_he_asked_for(operator: Client) -> None:
    asked = ask(operator, JobFactory(dead=True))
    assert "You asked for it yourself" in plain(operator.get(page(asked)))
    answer = decide(operator, asked)
    assert answer.status_code == 409
    assert "You asked for it yourself: somebody else has to approve it." in plain(answer)
    assert audited()[-1][0::2] == ("approve", "refused_state")
    assert Job.objects.get().state == "dead"
    assert decide(operator, asked, "decline").status_code == 303


@pytest.mark.parametrize("lacking", SECOND[:3])
def test_who_lacks_a_permission_does_not_approve(lacking: str, operator: Client) -> None:
    asked = ask(operator, JobFactory(dead=True))
    client = client_with("op3", *(name for name in SECOND if name != lacking))
    if lacking != "approve_action":
        assert f"You do not have the permission pgqueue.{lacking}." in plain(client.get(page(asked)))
    if lacking == "view_job":  # The page shows nothing to decide by, and so offers nothing.
        assert not client.get(confirm_url(asked, "approve")).context["token"]
        return
    assert decide(client, asked).status_code == 403
    assert audited()[-1][0::2] == ("approve", "forbidden")
    assert Job.objects.get().state == "dead"


def test_who_may_not_touch_the_queue_does_not_approve(operator: Client, second: Client, settings: Any) -> None:
    asked = ask(operator, JobFactory(dead=True, queue="payments"))
    settings.PGQUEUE = {**settings.PGQUEUE, "CONSOLE_AUTHORIZE": "tests.admin.test_approvals.may_only_approve"}
    assert decide(second, asked).status_code == 403
    assert Job.objects.get().state == "dead"
    assert ApprovalRequest.objects.get().state == "waiting"


def may_only_approve(user: Any, verb: str, queue: str, task: str | None) -> bool:
    return verb == "approve"


def test_a_job_that_changed_is_not_acted_on(operator: Client, second: Client) -> None:
    row = JobFactory(dead=True)
    asked = ask(operator, row)
    Job.objects.update(version=99)
    assert "has changed since" in plain(second.get(page(row)))
    assert "it can only be declined" in plain(second.get(page(asked)))
    assert needs(second) == []
    answer = decide(second, asked)
    assert answer.status_code == 409
    assert "What it is about has changed since" in plain(answer)
    assert audited()[-1] == ("approve", str(asked.pk), "changed", "checked with the bank")
    assert ApprovalRequest.objects.get().state == "waiting"
    assert Job.objects.get().state == "dead"


def test_what_has_expired_is_asked_for_anew(operator: Client, second: Client) -> None:
    row = JobFactory(dead=True)
    asked = ask(operator, row)
    ApprovalRequest.objects.update(expires_at=from_now(-1))
    assert "It has expired" in plain(second.get(page(asked)))
    assert needs(second) == []
    assert decide(second, asked).status_code == 409
    assert "expired" in plain(second.get(LIST, {"state": "expired"}))
    assert decide(second, ask(operator, row)).status_code == 303
    assert Job.objects.get().state == "pending"


def test_a_double_click_asks_once_and_approves_once(operator: Client, second: Client) -> None:
    row = JobFactory(dead=True)
    form = filled(token_for(operator, row, "requeue"), row)
    for _ in range(2):
        assert operator.post(confirm_url(row, "requeue"), form).status_code == 303
    assert "already asked for at" in plain(operator.get(page(row)))
    asked = ApprovalRequest.objects.get()
    approval = filled(token_for(second, asked, "approve"), asked)
    for _ in range(2):
        assert second.post(confirm_url(asked, "approve"), approval).status_code == 303
    assert [row[2] for row in audited()] == ["requested", "replayed", "applied", "applied", "replayed"]
    assert Job.objects.get().version == row.version + 1
    # The first page again, now that it is done.
    assert operator.post(confirm_url(row, "requeue"), form).status_code == 303
    assert audited()[-1][2] == "replayed"
    assert "used before, with other values" in plain(
        operator.post(confirm_url(row, "requeue"), {**form, "delay_minutes": "9"})
    )


@pytest.mark.parametrize("shape", [{"running": True}, {"succeeded": True}])
def test_nobody_asks_for_what_does_not_apply(shape: dict[str, bool], operator: Client) -> None:
    row = JobFactory(**shape)
    answer = operator.post(confirm_url(row, "requeue"), filled(token_for(operator, row, "requeue"), row))
    assert answer.status_code == 409
    assert not ApprovalRequest.objects.exists()


def test_queues_have_two_persons_too(operator: Client, second: Client) -> None:
    queue = QueueFactory()
    asked = ask(operator, queue, "pause_queue", for_minutes="5")
    assert "Waits for approval" in plain(operator.get(page(queue)))
    assert decide(second, asked).status_code == 403
    third = client_with("op3", "operate_queue", "approve_action", "view_queue", "view_approvalrequest")
    assert decide(third, asked).status_code == 303
    queue.refresh_from_db()
    assert queue.paused_by == "op1"
    assert round((queue.paused_until - queue.paused_at).total_seconds()) == 300


def test_a_command_line_asks_and_does_not_approve(operator: Client, second: Client) -> None:
    row = JobFactory(dead=True)
    command = ["pgqueue_act", "requeue", str(row.pk), "--seen", str(row.version), "--reason", "x", "--actor", "eve"]
    with pytest.raises(CommandError) as told:
        call_command(*command)
    assert told.value.returncode == REQUESTED
    asked = ApprovalRequest.objects.get()
    with pytest.raises(CommandError) as told:
        call_command("pgqueue_act", "approve", str(asked.pk), "--seen", "1", "--reason", "x", "--actor", "bob")
    assert told.value.returncode == NOT_DONE
    assert (Job.objects.get().state, asked.asked_by) == ("dead", "eve")
    action = act("approve", asked.pk, version_seen=1, actor=Actor(id=None, name="bob"), reason="x")
    assert (action.outcome, action.why) == (
        Outcome.REFUSED_STATE,
        "From a command line nobody can approve: nothing shows who it is. Approve it in the console.",
    )
    # The same name in another case is the same person.
    assert act("approve", asked.pk, version_seen=1, actor=Actor(id="9", name="EVE"), reason="x").outcome == (
        Outcome.REFUSED_STATE
    )
    assert decide(second, asked).status_code == 303
    assert Job.objects.get().state == "pending"


def test_a_set_is_approved_as_a_whole(operator: Client, second: Client) -> None:
    rows = [JobFactory(dead=True) for _ in range(3)]
    bulk = freeze(operator)
    step(operator, bulk, "run", **DONE, spread="10")
    step(operator, bulk, "run", **DONE)
    asked = ApprovalRequest.objects.get()
    assert (asked.target_kind, asked.target_id, asked.params) == ("bulk", str(bulk.pk), {"spread_seconds": 600})
    assert BulkAction.objects.get().state == "frozen"
    said = plain(operator.get(page(bulk)))
    assert "Waits for approval by another person: Requeue job" in said
    assert 'name="reason"' not in operator.get(page(bulk)).text
    assert decide(operator, asked).status_code == 409
    third = client_with("op3", "requeue_job", "approve_action", "view_bulkaction", "view_approvalrequest", "bulk_job")
    assert third.get(confirm_url(asked, "approve")).context["token"]
    assert decide(third, asked).status_code == 303
    bulk.refresh_from_db()
    assert (bulk.state, bulk.reason, bulk.spread_seconds) == ("running", DONE["reason"], 600)
    step(operator, bulk, "run")
    assert outcomes(bulk) == {row.pk: "applied" for row in rows}
    assert set(Job.objects.values_list("state", flat=True)) == {"pending"}
    facts = OperatorAction.objects.filter(verb="requeue", target_kind="job").values_list("facts", flat=True)
    assert [told["approved_by"] for told in facts] == ["op3"] * 3


def test_rows_of_a_set_that_nobody_approved_are_forbidden(operator: Client) -> None:
    rows = [JobFactory(dead=True) for _ in range(2)]
    bulk = freeze(operator)
    ApprovalRequestFactory(target_kind="bulk", target_id=str(bulk.pk), version_seen=None)
    ApprovalRequestFactory(target_kind="bulk", target_id=str(bulk.pk), verb="hold", state="approved")
    ApprovalRequestFactory(target_kind="bulk", target_id="another", state="approved")
    start(bulk.pk, actor=Actor.of(operator.user), reason="x", ticket="", spread_seconds=0)
    step(operator, bulk, "run")
    assert outcomes(bulk) == {row.pk: "forbidden" for row in rows}
    assert set(Job.objects.values_list("state", flat=True)) == {"dead"}


def test_rows_that_are_done_one_by_one_need_the_approval_too(operator: Client) -> None:
    row = JobFactory(dead=True, unique_key="k")
    JobFactory(unique_key="k")
    other = JobFactory(dead=True)
    bulk = freeze(operator)
    start(bulk.pk, actor=Actor.of(operator.user), reason="x", ticket="", spread_seconds=0)
    step(operator, bulk, "run")
    assert outcomes(bulk) == {row.pk: "forbidden", other.pk: "forbidden"}
    BulkItem.objects.update(outcome=None)
    BulkAction.objects.update(state="running", finished_at=None)
    ApprovalRequestFactory(
        target_kind="bulk", target_id=str(bulk.pk), version_seen=None, state="approved", decided_by="op2"
    )
    step(operator, bulk, "run")
    assert outcomes(bulk) == {row.pk: "refused_duplicate", other.pk: "applied"}


@pytest.mark.django_db(transaction=True)
def test_of_two_who_approve_at_once_one_does(operator: Client, second: Client) -> None:
    row = JobFactory(dead=True)
    asked = ask(operator, row)
    third = client_with("op3", *SECOND)
    forms = [filled(token_for(client, asked, "approve"), asked) for client in (second, third)]
    start = Barrier(2)

    def approve(client: Client, form: dict[str, Any]) -> int:
        start.wait(timeout=30)
        try:
            return int(client.post(confirm_url(asked, "approve"), form).status_code)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(approve, (second, third), forms))
    assert sorted(answers) == [303, 409]
    assert Job.objects.get().version == row.version + 1
    assert sorted(outcome for verb, _id, outcome, _reason in audited() if verb == "approve") == ["applied", "changed"]


def test_a_look_takes_three_queries_and_changes_nothing(operator: Client, second: Client) -> None:
    asked = ask(operator, JobFactory(dead=True))
    before = list(ApprovalRequest.objects.values())
    for url, most in ((LIST, 2), (confirm_url(asked, "approve"), 3)):
        with CaptureQueriesContext(connection) as queries:
            assert second.get(url).status_code == 200
        ours = [query["sql"] for query in queries if "pgqueue_" in query["sql"]]
        assert len(ours) <= most, ours
    assert list(ApprovalRequest.objects.values()) == before


def test_a_verb_that_does_not_exist_is_a_fault_of_the_settings() -> None:
    for name in ("approve", "requeu"):
        (found,) = problems({"TWO_PERSON_VERBS": [name]})
        assert found.message == f"PGQUEUE['TWO_PERSON_VERBS'] names {name!r}."
    assert list(problems({"TWO_PERSON_VERBS": ("requeue", "happened")})) == []


def test_without_the_setting_everything_is_as_before(operator: Client, settings: Any) -> None:
    settings.PGQUEUE = {}
    row = JobFactory(dead=True)
    assert "somebody else" not in plain(operator.get(confirm_url(row, "requeue")))
    operator.post(confirm_url(row, "requeue"), filled(token_for(operator, row, "requeue"), row))
    assert Job.objects.get().state == "pending"
    assert not ApprovalRequest.objects.exists()
    assert "Nobody waits for approval" in plain(operator.get(LIST))
    assert Queue.objects.count() == 0
