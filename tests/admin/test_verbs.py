"""Every verb against everything that can come of it, posted to its real URL."""

from __future__ import annotations

from html import unescape
from typing import Any

import psycopg
import pytest
from django.core import signing
from django.db.models import F
from django.test import Client

from pgqueue.admin.seen import CONFIRM_SECONDS
from pgqueue.admin.words import REQUEST_STATES, stage_words, state_in_full, state_words
from pgqueue.models import ApprovalRequest, Job, OperatorAction
from pgqueue.states import Outcome, State
from tests.admin.conftest import VIEWS
from tests.admin.console import (
    AUDIT,
    QUEUE_TABLES,
    REASON,
    VERBS,
    audited,
    checksums,
    client_with,
    columns,
    confirm_url,
    filled,
    make,
    page,
    token_for,
)
from tests.factories import JobFactory, from_now

pytestmark = pytest.mark.django_db
STATE_WORDS = {state: state_words(state) for state in State}
TARGET_TABLES = tuple(table for table in QUEUE_TABLES if table != AUDIT and "bulk" not in table)

UNKNOWN: dict[str, dict[str, Any]] = {
    "applied": {"unknown": True},
    "refused_running": {"running": True},
    "refused_unknown": {"replaying": True},
    "refused_state": {"dead": True},
}
TRIAGE = {name: traits for name, traits in UNKNOWN.items() if name != "refused_unknown"}

CHARGE = "tests.testapp.effect_tasks.charge"
"""A task that declares a compensation."""
WAITING: dict[str, dict[str, Any]] = {
    "applied": {"retrying": True},
    "refused_running": {"running": True},
    "refused_unknown": {"unknown": True},
    "refused_state": {"dead": True},
}

TARGETS: dict[str, dict[str, dict[str, Any]]] = {
    "requeue": {
        "applied": {"dead": True},
        "refused_running": {"running": True},
        "refused_unknown": {"unknown": True},
        "refused_state": {"succeeded": True},
    },
    "cancel": {
        "applied": {"retrying": True},
        "refused_running": {"running": True},
        "refused_unknown": {"unknown": True},
        "refused_state": {"dead": True},
    },
    "hold": {
        "applied": {},
        "refused_running": {"running": True},
        "refused_unknown": {"unknown": True},
        "refused_state": {"paused": True},
    },
    "unhold": {
        "applied": {"paused": True},
        "refused_running": {"running": True},
        "refused_unknown": {"unknown": True},
        "refused_state": {"cancelled": True},
    },
    "give_up": {
        "applied": {"retrying": True},
        "refused_running": {"running": True},
        "refused_unknown": {"unknown": True},
        "refused_state": {"dead": True},
    },
    "ask_to_stop": {
        "applied": {"running": True},
        "refused_unknown": {"unknown": True},
        "refused_state": {"stop_requested": True},
    },
    "break_lease": {
        "applied": {"running": True},
        "refused_unknown": {"unknown": True},
        "refused_state": {},
    },
    "skip_head": {
        "applied": {"strict": True, "retrying": True},
        "refused_running": {"strict": True, "running": True},
        "refused_unknown": {"unknown": True},
        "refused_state": {"keyed": True},
    },
    "happened": UNKNOWN,
    "happened_finish": UNKNOWN,
    "compensate": {outcome: {**traits, "task": CHARGE} for outcome, traits in UNKNOWN.items()},
    "did_not_happen": UNKNOWN,
    "give_up_unknown": UNKNOWN,
    "ask_again": {
        "applied": {"probing": True},
        "refused_running": {"running": True},
        "refused_unknown": {"unknown": True},
        "refused_state": {"dead": True},
    },
    "take": TRIAGE,
    "hand_over": TRIAGE,
    "snooze": TRIAGE,
    "clone": {
        "applied": {"dead": True},
        "refused_unknown": {"unknown": True},
        "refused_state": {"dead": True, "stage": "outcome_unknown"},
    },
    "purge": {
        "applied": {"succeeded": True},
        "refused_running": {"running": True},
        "refused_unknown": {"unknown": True},
        "refused_state": {"cancelled": True, "purged_at": from_now(-5)},
    },
    "run_now": {**WAITING, "applied": {"future": True}},
    "reschedule": WAITING,
    "reprioritise": WAITING,
    "move_queue": WAITING,
    "set_limit": {"applied": {}},
    "set_rate": {"applied": {"paused": True}},
    "set_weight": {"applied": {}},
    "pause_jobs": {"applied": {}, "refused_state": {"paused": True}},
    "resume_jobs": {"applied": {"paused": True}, "refused_state": {}},
    "pause_queue": {"applied": {}, "refused_state": {"paused": True}},
    "resume_queue": {"applied": {"paused": True}, "refused_state": {}},
    "drain_worker": {"applied": {}, "refused_state": {"silent": True}},
    "forget_worker": {"applied": {"silent": True}, "refused_state": {}},
    "approve": {
        "applied": {},
        "refused_running": {"about": {"running": True}},
        "refused_unknown": {"about": {"unknown": True}},
        "refused_state": {"declined": True},
    },
    "decline": {"applied": {}, "refused_state": {"declined": True}},
}
"""Of each verb a target that it applies to, and one for each refusal, as traits of the factory."""

MAKERS = ("clone", "compensate")
"""Verbs that make a job, and lead to it."""
TRIAGE_VERBS = ("take", "hand_over", "snooze")
NEVER = {
    ("ask_to_stop", "refused_running"),
    ("break_lease", "refused_running"),
    ("clone", "refused_running"),
    *((verb, "refused_unknown") for verb in TRIAGE_VERBS),
    *(
        (name, f"refused_{why}")
        for name, verb in VERBS.items()
        if verb.kind in ("queue", "limit", "worker")
        for why in ("running", "unknown")
    ),
    *((verb, "refused_state") for verb in ("set_limit", "set_rate", "set_weight")),
    *(("decline", f"refused_{why}") for why in ("running", "unknown")),
}
"""Refusals that a verb cannot give: it is for running jobs, or a queue or a limit has no such state."""

REFUSALS = ("refused_running", "refused_unknown", "refused_state")
SITUATIONS = (
    *("changed", "gone", "busy", "replayed", "forbidden", "requested"),
    *("expired", "foreign_user", "foreign_verb", "forged"),
)
STATUSES = {"applied": 303, "replayed": 303, "requested": 303, "gone": 410, "forbidden": 403}
UNAUDITED = ("expired", "foreign_user", "foreign_verb", "forged")
COMMITTING = pytest.mark.django_db(transaction=True)


def test_every_verb_and_outcome_has_its_row() -> None:
    assert set(TARGETS) == set(VERBS)
    told = {(verb, outcome) for verb, targets in TARGETS.items() for outcome in targets}
    assert told | NEVER == {(verb, outcome) for verb in VERBS for outcome in ("applied", *REFUSALS)}
    # A requeue that meets a job of its unique key is tested with those.
    assert {"applied", *REFUSALS, *SITUATIONS, "refused_duplicate"} >= set(Outcome)


@pytest.mark.parametrize(("verb", "outcome"), [(verb, outcome) for verb in TARGETS for outcome in TARGETS[verb]])
def test_a_post_answers_what_the_target_allows(verb: str, outcome: str, operator: Client) -> None:
    row = make(verb, TARGETS[verb][outcome])
    before = checksums(*TARGET_TABLES)
    answer = operator.post(confirm_url(row, verb), filled(token_for(operator, row, verb), row))
    assert audited() == [(verb, str(row.pk), outcome, REASON), *done_by_approval(verb, row, outcome)]
    if outcome == "applied":
        shown = Job.objects.latest("id") if verb in MAKERS else row
        assert (answer.status_code, answer.headers["Location"]) == (303, page(shown))
        assert columns(row)["version"] == row.version + 1
        return
    assert_nothing_was_done(answer, outcome, before)
    shown = unescape(answer.text)
    if VERBS[verb].kind in ("queue", "limit"):
        assert "active" in shown or "paused" in shown
    elif VERBS[verb].kind == "worker":
        assert "alive" in shown or "SILENT" in shown
    else:
        assert str({**STATE_WORDS, **REQUEST_STATES}[row.state]) in shown


def done_by_approval(verb: str, row: Any, outcome: str) -> list[tuple[str, str, str, str]]:
    """Return what else is on record: what was asked for is done in the name and the words of who asked."""
    is_done = (verb, outcome) == ("approve", "applied")
    return [(row.verb, row.target_id, "applied", row.reason)] if is_done else []


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(
    "situation", [pytest.param(name, marks=COMMITTING if name == "busy" else ()) for name in SITUATIONS]
)
def test_a_post_answers_what_happened_meanwhile(
    verb: str,
    situation: str,
    operator: Client,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    settings: Any,
) -> None:
    settings.PGQUEUE = {"LOCK_TIMEOUT_SECONDS": 0.1}
    row = make(verb, TARGETS[verb]["applied"])
    client, token = operator, operator.get(confirm_url(row, verb)).context["token"]
    expected = situation
    match situation:
        case "changed":
            type(row).objects.filter(pk=row.pk).update(version=F("version") + 1)
        case "gone":
            type(row).objects.filter(pk=row.pk).delete()
            # A queue or a limit without a row is an active one of version 0.
            expected = "gone" if VERBS[verb].kind in ("job", "request", "worker") else "changed"
        case "busy":
            lock(request.getfixturevalue("open_connection")(), row)
        case "replayed":
            client.post(confirm_url(row, verb), filled(token, row))
        case "forbidden":
            client = client_with("viewer", *VIEWS)
        case "requested":
            if VERBS[verb].kind == "request":
                pytest.skip("whoever decides about a request is the second person")
            settings.PGQUEUE = {"TWO_PERSON_VERBS": [verb]}
        case "expired":
            pass_time(monkeypatch, CONFIRM_SECONDS + 60)
        case "foreign_user":
            token = token_for(client_with("op2", *VIEWS), row, verb)
        case "foreign_verb":
            token = token_for(client, row, next(other for other in VERBS if other != verb))
        case "forged":
            token = token[:-1] + ("A" if token[-1] != "A" else "B")
    before = checksums(*TARGET_TABLES)

    answer = client.post(confirm_url(row, verb), filled(token, row))

    rows = [(verb, str(row.pk), expected, REASON)]
    if situation == "requested":
        asked = ApprovalRequest.objects.get()
        assert (asked.verb, asked.target_id, asked.version_seen) == (verb, str(row.pk), row.version)
        before["pgqueue_approvalrequest"] = checksums("pgqueue_approvalrequest")["pgqueue_approvalrequest"]
    if situation == "replayed":
        rows = [(verb, str(row.pk), "applied", REASON), *done_by_approval(verb, row, "applied"), *rows]
        assert (answer.status_code, answer.headers["Location"]) == (303, page(row))
        shown = client.get(page(row)).text
        assert "already done at" in shown
        assert "not done twice" in shown
    assert audited() == ([] if situation in UNAUDITED else rows)
    if VERBS[verb].kind in ("queue", "limit") and situation == "gone":
        assert columns(row)["version"] == 0
        before = checksums(*TARGET_TABLES)
    assert_nothing_was_done(answer, expected, before)


def assert_nothing_was_done(answer: Any, outcome: str, before: dict[str, str]) -> None:
    """Check the rows, and that the page says so and has kept what was typed."""
    assert checksums(*TARGET_TABLES) == before
    assert answer.status_code == STATUSES.get(outcome, 409)
    if answer.status_code == 303:
        return
    assert 'role="alert"' in answer.text
    assert "nothing was done" in answer.text
    assert 'name="seen"' not in answer.text
    if outcome != "forbidden":
        assert f'value="{REASON}"' in answer.text
        assert 'value="OPS-1"' in answer.text
        assert "Look again" in answer.text


def lock(connection: psycopg.Connection[Any], row: Any) -> None:
    """Hold a row's lock until the connection is closed."""
    connection.autocommit = False
    table, key = type(row)._meta.db_table, type(row)._meta.pk.column
    connection.execute(f"SELECT 1 FROM {table} WHERE {key} = %s FOR UPDATE", [row.pk])


def pass_time(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let what was signed until now be that much older."""
    now = signing.time.time

    class Later:
        @staticmethod
        def time() -> float:
            return now() + seconds

    monkeypatch.setattr(signing, "time", Later)


def test_a_token_of_another_job_does_nothing(operator: Client) -> None:
    seen, other = JobFactory(), JobFactory()
    before = checksums()
    answer = operator.post(confirm_url(other, "hold"), filled(token_for(operator, seen, "hold"), other))
    assert answer.status_code == 409
    assert checksums() == before


def test_a_page_is_good_for_ten_minutes(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    row = JobFactory()
    token = operator.get(confirm_url(row, "hold")).context["token"]
    pass_time(monkeypatch, CONFIRM_SECONDS - 5)
    assert operator.post(confirm_url(row, "hold"), filled(token, row)).status_code == 303


def test_a_double_click_and_back_are_done_once(operator: Client) -> None:
    row = JobFactory(dead=True)
    form = filled(operator.get(confirm_url(row, "requeue")).context["token"], row)
    answers = [operator.post(confirm_url(row, "requeue"), {**form, "reason": f"no. {n}"}) for n in range(3)]
    assert [answer.status_code for answer in answers] == [303, 303, 303]
    assert [outcome for _verb, _id, outcome, _reason in audited()] == ["applied", "replayed", "replayed"]
    assert Job.objects.get().version == row.version + 1


def test_two_operators_on_the_same_page_one_wins(operator: Client) -> None:
    row = JobFactory(dead=True)
    second = client_with("op2", "requeue_job", "view_job")
    tokens = [client.get(confirm_url(row, "requeue")).context["token"] for client in (operator, second)]
    assert operator.post(confirm_url(row, "requeue"), filled(tokens[0], row)).status_code == 303
    answer = second.post(confirm_url(row, "requeue"), filled(tokens[1], row))
    assert answer.status_code == 409
    assert "Changed since you looked" in answer.text
    assert answer.context["facts"][0][1:] == ("Ready or scheduled (pending)", "Failed, gave up (dead)")
    assert OperatorAction.objects.values_list("actor_name", "outcome").order_by("id").last() == ("op2", "changed")


@pytest.mark.parametrize(
    ("verb", "reason"),
    [*((name, "") for name, verb in VERBS.items() if verb.level > 1), ("hold", "   "), ("hold", "\0"), ("hold", None)],
)
def test_without_a_reason_the_page_comes_back(verb: str, reason: str | None, operator: Client) -> None:
    row = make(verb, TARGETS[verb]["applied"])
    before = checksums()
    token = operator.get(confirm_url(row, verb)).context["token"]
    form = filled(token, row)
    form |= {"reason": reason} if reason is not None else {}
    if reason is None:
        del form["reason"]
    answer = operator.post(confirm_url(row, verb), form)
    assert answer.status_code == 422
    assert 'role="alert"' in answer.text
    assert 'aria-invalid="true" aria-describedby="pgqueue-error"' in answer.text
    assert 'value="OPS-1"' in answer.text
    assert checksums() == before
    # The page keeps its token, and so its age and its key.
    assert answer.context["token"] == token
    assert operator.post(confirm_url(row, verb), filled(token, row)).status_code == 303


@pytest.mark.parametrize("typed", ["", "yes", "0", "\uff11\uff12", None])
def test_breaking_a_lease_needs_the_number_typed(typed: str | None, operator: Client) -> None:
    row = JobFactory(running=True)
    before = checksums()
    form = filled(operator.get(confirm_url(row, "break_lease")).context["token"], row, typed=typed or "")
    if typed is None:
        del form["typed"]
    answer = operator.post(confirm_url(row, "break_lease"), form)
    assert answer.status_code == 422
    assert answer.text.count(f"Type the number {row.pk} to confirm.") == 2, "in the summary, and at the field"
    assert f'value="{REASON}"' in answer.text
    assert checksums() == before


def test_only_level_three_asks_for_the_number(operator: Client) -> None:
    asking = {verb for verb in VERBS if asks_for_the_number(operator, verb)}
    assert asking == {verb.name for verb in VERBS.values() if verb.level == 3}


def asks_for_the_number(client: Client, verb: str) -> bool:
    """Say whether the confirm page has a field for it."""
    return 'name="typed"' in client.get(confirm_url(make(verb, TARGETS[verb]["applied"]), verb)).text


def test_looking_again_keeps_the_text_and_shows_the_facts_anew(operator: Client) -> None:
    row = JobFactory()
    old = operator.get(confirm_url(row, "hold")).context["token"]
    Job.objects.update(version=5)
    before = checksums()
    answer = operator.post(confirm_url(row, "hold"), {"look": "1", "seen": old, "reason": REASON, "ticket": "OPS-1"})
    assert answer.status_code == 200
    assert checksums() == before
    assert f'value="{REASON}"' in answer.text
    assert operator.post(confirm_url(row, "hold"), filled(answer.context["token"], row)).status_code == 303


@pytest.mark.parametrize("verb", VERBS)
def test_the_confirm_page_shows_the_facts(verb: str, operator: Client) -> None:
    row = make(verb, TARGETS[verb]["applied"])
    answer = operator.get(confirm_url(row, verb))
    assert answer.status_code == 200
    facts = {str(label): now for label, now, _was in answer.context["facts"]}
    assert facts["Version"] == str(row.version)
    if VERBS[verb].kind == "job":
        assert facts["State"] == state_in_full(row.state)
        assert facts["Attempts"] == f"{row.attempts} of {row.max_attempts}"
        assert facts["Stage reached"] == stage_words(row.stage)
        assert facts["Operation key"] == f"job:{row.pk}"
        assert ("worker -101" in facts["Lease"]) == (row.state == "running")


def test_the_page_says_that_the_job_changed_since_the_one_before(operator: Client) -> None:
    row = JobFactory()
    url = next(offer.url for offer in operator.get(page(row)).context["offers"] if "hold" in offer.url)
    assert "It has changed since" not in operator.get(url).text
    Job.objects.update(version=2)
    assert "It has changed since" in operator.get(url).text


@pytest.mark.parametrize(
    "object_id", ["abc", "0x1", "-1", "1.0", "9" * 19, "9" * 30, "9" * 5000, "%00", "_00", "1%20or%201=1", "\u0661"]
)
def test_no_text_for_a_number_breaks_a_page(object_id: str, operator: Client) -> None:
    for name in ("change", "history", "do/hold"):
        url = f"/admin/pgqueue/job/{object_id}/{name}/"
        assert operator.get(url).status_code in (302, 404)
        assert operator.post(url, {"reason": "x"}).status_code in (302, 403, 404)
    assert audited() == []


@pytest.mark.parametrize("name", ["a/b", "a_5Fb", "x/do/hold", "#1?x=y", "ключ", "a b", "<script>", "'\"", "%2F", "."])
def test_a_queue_of_any_name_can_be_paused(name: str, operator: Client) -> None:
    row = make("pause_queue", {"name": name})
    assert operator.get(page(row)).status_code == 200
    token = operator.get(confirm_url(row, "pause_queue")).context["token"]
    answer = operator.post(confirm_url(row, "pause_queue"), filled(token, row))
    assert (answer.status_code, answer.headers["Location"]) == (303, page(row))
    assert operator.get(page(row)).context["original"].pk == name
    assert audited() == [("pause_queue", name, "applied", REASON)]


def test_a_queue_without_a_row_can_be_paused(operator: Client) -> None:
    job = JobFactory(queue="sms")
    assert "/admin/pgqueue/queue/sms/change/" in operator.get(page(job)).text
    assert operator.get("/admin/pgqueue/queue/sms/change/").status_code == 200
    url = "/admin/pgqueue/queue/sms/do/pause_queue/"
    answer = operator.post(url, {"seen": operator.get(url).context["token"], "reason": REASON})
    assert answer.status_code == 303
    assert operator.get(page(job, "history")).status_code == 302


@pytest.mark.parametrize("name", ["%00", "a" * 201])
def test_what_no_queue_is_called_is_not_found(name: str, operator: Client) -> None:
    for last in ("change", "do/pause_queue"):
        assert operator.get(f"/admin/pgqueue/queue/{name}/{last}/").status_code in (302, 404)


@pytest.mark.parametrize("verb", ["pause_queue", "claim", "delete", "__class__"])
def test_a_verb_of_something_else_is_not_found(verb: str, operator: Client) -> None:
    url = f"/admin/pgqueue/job/{JobFactory().pk}/do/{verb}/"
    assert operator.get(url).status_code == 404
    assert operator.post(url, {"reason": "x"}).status_code == 404


def test_a_long_text_is_cut_and_not_refused(operator: Client) -> None:
    row = JobFactory()
    form = filled(token_for(operator, row, "hold"), row, reason="x" * 10_000, ticket="\0" + "y" * 10_000)
    assert operator.post(confirm_url(row, "hold"), form).status_code == 303
    found = OperatorAction.objects.get()
    assert (len(found.reason), len(found.ticket)) == (2_000, 2_000)


@pytest.mark.case("M10")
@COMMITTING
def test_a_row_that_a_worker_holds_is_a_message_and_no_traceback(
    operator: Client, request: pytest.FixtureRequest, settings: Any
) -> None:
    settings.PGQUEUE = {"LOCK_TIMEOUT_SECONDS": 0.1}
    row = JobFactory(retrying=True)
    token = operator.get(confirm_url(row, "reschedule")).context["token"]
    lock(request.getfixturevalue("open_connection")(), row)
    answer = operator.post(confirm_url(row, "reschedule"), filled(token, row))
    assert answer.status_code == 409
    assert "Somebody else is working on it at this moment: nothing was done. Try again." in unescape(answer.text)
    assert audited() == [("reschedule", str(row.pk), "busy", REASON)]


@pytest.mark.case("M13")
def test_a_requeued_job_is_the_same_job_and_tells_who_requeued_it(operator: Client) -> None:
    row = JobFactory(dead=True)
    operator.post(confirm_url(row, "requeue"), filled(token_for(operator, row, "requeue"), row))
    assert [job.pk for job in Job.objects.all()] == [row.pk]
    shown = unescape(operator.get(page(row)).text)
    assert "op1: Requeue job, applied" in shown
    assert REASON in shown
    assert operator.get("/admin/pgqueue/job/?state=dead").context["cl"].result_list == []
    clone = JobFactory(dead=True)
    operator.post(confirm_url(clone, "clone"), filled(token_for(operator, clone, "clone"), clone))
    assert Job.objects.latest("id").cloned_from_id == clone.pk
