"""What the pages show, to whom, and at what cost."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pgqueue.admin.jobs import TIMES
from pgqueue.admin.timeline import LATEST
from pgqueue.admin.words import VERB_LABELS, state_words
from pgqueue.models import Job, JobResult
from pgqueue.states import State
from pgqueue.verb_reasons import why_not
from tests.admin.console import VERBS, client_with, confirm_url, page
from tests.factories import (
    AttemptFactory,
    BulkActionFactory,
    JobFactory,
    JobPayloadFactory,
    OperatorActionFactory,
    QueueFactory,
    WorkerFactory,
    from_now,
)
from tests.races.rows import add_jobs

pytestmark = pytest.mark.django_db
JOBS = "/admin/pgqueue/job/"
LISTS = [
    f"/admin/pgqueue/{model}/" for model in ("job", "queue", "worker", "bulkaction", "operatoraction", "reconcile")
]
TRAITS = ({}, *({state.value: True} for state in State if state != State.PENDING))
SCRIPT = "<script>alert(1)</script>"
LARGE_ID = 2**53 + 1


def numbers(answer: Any) -> list[int]:
    """Return the ids of the rows that a list shows."""
    return [row.pk for row in answer.context["cl"].result_list]


def plain(answer: Any) -> str:
    """Return what a page says, without its tags."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


# -- the list of jobs ---------------------------------------------------------------------------------------


def test_the_list_shows_the_newest_first_with_what_matters(operator: Client) -> None:
    JobFactory()
    old, new = JobFactory(dead=True), JobFactory(running=True)
    answer = operator.get(JOBS)
    assert numbers(answer)[:2] == [new.pk, old.pk]
    said = plain(answer)
    for words in (
        "RuntimeError: no",
        "8 of 8",
        "worker -101, ",
        "s left",
        "add tests. testapp. tasks",
        "Failed, gave up",
        "due for ",
        "ended ",
    ):
        assert words in said


@pytest.mark.parametrize("traits", TRAITS, ids=str)
def test_the_state_filter_keeps_one_state(traits: dict[str, Any], operator: Client) -> None:
    rows = {row.state: row.pk for row in (JobFactory(**other) for other in TRAITS)}
    state = next(iter(traits), "pending")
    assert numbers(operator.get(JOBS, {"state": state})) == [rows[state]]


@pytest.mark.parametrize("state", ["zzz", "", "\0", "dead' OR 1=1"])
def test_a_state_that_is_none_shows_nothing_and_breaks_nothing(state: str, operator: Client) -> None:
    JobFactory()
    answer = operator.get(JOBS, {"state": state})
    assert answer.status_code == 200
    assert numbers(answer) == []


def test_a_state_that_this_release_does_not_know_is_shown_as_text(operator: Client) -> None:
    row = JobFactory()
    with connection.cursor() as cursor:
        cursor.execute("SELECT conname FROM pg_constraint WHERE conrelid = 'pgqueue_job'::regclass AND contype = 'c'")
        for (name,) in cursor.fetchall():
            cursor.execute(f"ALTER TABLE pgqueue_job DROP CONSTRAINT {name}")
        cursor.execute("UPDATE pgqueue_job SET state = 'zzz', stage = 'yyy', recovery = 'xxx'")
    assert "zzz" in plain(operator.get(JOBS))
    assert "zzz" in plain(operator.get(page(row)))
    assert "/do/" not in operator.get(page(row)).text
    for verb in (verb for verb in VERBS.values() if verb.kind == "job"):
        assert "It is zzz" in plain(operator.get(confirm_url(row, verb.name)))


@pytest.mark.parametrize(
    ("term", "finds"), [("{}", True), ("#{}", True), (" {} ", True), ("add", False), ("9" * 5000, False), ("-1", False)]
)
def test_only_a_number_is_searched(term: str, finds: bool, operator: Client) -> None:
    row, _other = JobFactory(), JobFactory()
    with CaptureQueriesContext(
        connection,
    ) as queries:
        answer = operator.get(JOBS, {"q": term.format(row.pk)})
    assert numbers(answer) == ([row.pk] if finds else [])
    assert not any("LIKE" in query["sql"].upper() for query in queries)


@pytest.mark.parametrize("url", [*LISTS, JOBS + "?state=dead"])
def test_an_empty_list_says_what_to_do(url: str, operator: Client) -> None:
    said = plain(operator.get(url))
    words = {
        "job": "enqueue()",
        "queue": "--queue NAME",
        "worker": "manage.py runworker",
        "operatoraction": "acted",
        "bulkaction": "Tick rows",
        "reconcile": "Nothing needs a decision",
    }
    assert ("Nothing here matches" if "?" in url else words[url.split("/")[3]]) in said


@pytest.mark.parametrize("url", LISTS)
def test_no_url_makes_the_list_search_a_column(url: str, operator: Client) -> None:
    for asked in ("last_error__iregex=(a*)*b", "task=x", "version__gt=1", "payload__args=1"):
        assert operator.get(f"{url}?{asked}").status_code == 400


@pytest.mark.parametrize("url", LISTS)
def test_no_url_changes_the_order(url: str, operator: Client) -> None:
    expected = ordering(operator, url)
    for asked in ("o=1", "o=2.-3", "o=-1", "p=2", "p=999", "p=x", "all=", "_facets=True", "e=1"):
        assert ordering(operator, f"{url}?{asked}") in (expected, "")


def ordering(client: Client, url: str) -> str:
    """Return the ORDER BY of the last query that has one."""
    with CaptureQueriesContext(connection) as queries:
        assert client.get(url).status_code in (200, 302)
    sorting = [query["sql"] for query in queries if "ORDER BY" in query["sql"]]
    found = [sql.rpartition("ORDER BY")[2].partition("LIMIT")[0].strip() for sql in sorting]
    return next((order for order in reversed(found) if order), "")


# -- what it costs ------------------------------------------------------------------------------------------


def test_the_list_selects_no_payload_result_or_traceback(operator: Client) -> None:
    for row in (JobFactory(), JobFactory(succeeded=True)):
        JobPayloadFactory(job_id=row.pk)
        JobResult.objects.create(job_id=row.pk, value="x" * 1000)
        AttemptFactory(job_id=row.pk)
    with CaptureQueriesContext(connection) as queries:
        answer = operator.get(JOBS)
    assert len(numbers(answer)) == 2
    assert not [query for query in queries if re.search("payload|jobresult|attempt", query["sql"].partition("FROM")[2])]


def test_the_job_page_reads_the_end_of_a_traceback_alone(operator: Client) -> None:
    row = JobFactory()
    AttemptFactory(job_id=row.pk)
    with CaptureQueriesContext(connection) as queries:
        operator.get(page(row))
    assert not [query for query in queries if re.search(r'(?<!RIGHT\("pgqueue_attempt"\.)"traceback"', query["sql"])]
    assert not [query for query in queries if "jobpayload" in query["sql"] and "WHERE" not in query["sql"]]


@pytest.mark.parametrize("url", LISTS)
def test_ten_rows_and_a_hundred_cost_the_same_number_of_queries(url: str, operator: Client) -> None:
    factories = {
        "queue": QueueFactory,
        "worker": WorkerFactory,
        "operatoraction": OperatorActionFactory,
        "bulkaction": BulkActionFactory,
    }
    counted = []
    for rows in (10, 90):
        if url == JOBS:
            add_jobs(rows, dead=True)
        elif "reconcile" in url:
            add_jobs(rows, unknown=True)
        else:
            factories[url.split("/")[3]].create_batch(rows)
        for asked in ("", "?all=1"):
            with CaptureQueriesContext(connection) as queries:
                operator.get(url + asked)
            counted.append(len(queries))
    assert len(set(counted)) == 1
    assert counted[0] <= 12


def test_attempts_cost_one_query_and_only_the_latest_are_shown(operator: Client) -> None:
    row = JobFactory()
    # What Django looks up once and then remembers, such as a content type, is no matter here.
    operator.get(page(row))
    counted = []
    for count in (1, LATEST + 5):
        AttemptFactory.create_batch(count, job_id=row.pk)
        with CaptureQueriesContext(connection) as queries:
            answer = operator.get(page(row))
        counted.append(len(queries))
        assert sum(each["event"].kind == "attempt" for each in answer.context["timeline"]) == min(count, LATEST)
    assert counted[1] == counted[0] + 1, "those that are left out are counted"


@pytest.mark.parametrize("url", [*LISTS, JOBS + "?state=dead", JOBS + "?q=1", JOBS + "?q=queue:x"])
def test_nothing_is_counted_skipped_or_made_distinct(url: str, operator: Client) -> None:
    with CaptureQueriesContext(connection) as queries:
        operator.get(url)
    # Statements of our own, which begin with their name, have caps of their own.
    found = [query["sql"].upper() for query in queries if "PGQUEUE_" in query["sql"].upper()]
    found = [sql for sql in found if "/*PGQUEUE." not in sql]
    assert found
    assert not [sql for sql in found if re.search(r"COUNT\(|DISTINCT|OFFSET", sql)]
    assert all("LIMIT" in sql for sql in found)


# -- what it shows, and to whom -----------------------------------------------------------------------------


@pytest.mark.parametrize("traits", TRAITS, ids=str)
def test_the_job_page_lists_every_verb_and_why_one_is_not_offered(traits: dict[str, Any], operator: Client) -> None:
    row = JobFactory(**traits, task="tests.testapp.effect_tasks.charge")
    context = operator.get(page(row)).context
    offers = [*context["offers"], *context["refused"]]
    verbs = {str(VERB_LABELS[verb.name]): verb for verb in VERBS.values() if verb.kind == "job"}
    assert {str(offer.label) for offer in offers} == set(verbs)
    known = {
        "words": state_words,
        "unknown_effects": row.unknown_effects,
        "stop_requested": row.stop_requested_at is not None,
        "blocks_key": row.blocks_key,
        "stage": row.stage,
        "recovery": row.recovery,
        "compensation": "tests.testapp.effect_tasks.refund" if row.state == "unknown" else None,
    }
    for offer in offers:
        assert offer.why_not == why_not(verbs[str(offer.label)], row.state, **known)
    # What can be done comes first.
    assert [offer.why_not is not None for offer in offers] == sorted(offer.why_not is not None for offer in offers)


def test_the_job_page_shows_every_column(operator: Client) -> None:
    row = JobFactory(running=True, tenant="acme", shard_key="k", lane=1)
    shown = str(operator.get(page(row)).context["adminform"].fieldsets)
    otherwise = {
        "id",
        "task",
        "queue",
        "state",
        "attempts",
        "max_attempts",
        "operation_key",
        "last_error_class",
        "last_error",
        "worker_id",
        "lease_until",
        "replay_until",
        "snoozed_until",
        *("version", "fence", "settled_by", "parent_id", "cloned_from_id", "schedule_id"),
        *TIMES,
    }
    assert {field.name for field in Job._meta.fields if f"'{field.name}'" not in shown} == otherwise


def test_attempts_are_shown_with_their_errors(operator: Client) -> None:
    row = JobFactory(dead=True)
    AttemptFactory(job_id=row.pk, number=8, message="the card was declined", outcome="failed")
    said = plain(operator.get(page(row)))
    assert "builtins.RuntimeError: the card was declined" in said
    assert "failed" in said


@pytest.mark.parametrize("may", [True, False])
def test_arguments_and_result_need_their_permission(may: bool) -> None:
    client = client_with("op1", "view_job", "hold_job", *(["view_job_args"] if may else []))
    row = JobFactory()
    JobPayloadFactory(job_id=row.pk, args=["S3CRET-A"], kwargs={"token": "S3CRET-B"})
    JobResult.objects.create(job_id=row.pk, value="S3CRET-C")
    assert "S3CRET" not in client.get(JOBS).text
    assert "S3CRET" not in client.get(confirm_url(row, "hold")).text
    with CaptureQueriesContext(connection) as queries:
        shown = client.get(page(row)).text
    assert [name in shown for name in ("S3CRET-A", "S3CRET-B", "S3CRET-C")] == [may] * 3
    assert ("pgqueue.view_job_args" in shown) != may
    assert any("jobpayload" in query["sql"] for query in queries) == may


def test_large_numbers_are_exact(operator: Client, settings: Any) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    row = JobFactory(id=LARGE_ID, running=True, worker_id=LARGE_ID + 1)
    JobPayloadFactory(job_id=row.pk, args=[750727362669608961])
    JobResult.objects.create(job_id=row.pk, value=750727362669608963)
    OperatorActionFactory(target_id=str(LARGE_ID))
    assert str(LARGE_ID) in plain(operator.get(JOBS))
    assert f"worker {LARGE_ID + 1}" in plain(operator.get(JOBS))
    said = plain(operator.get(page(row)))
    assert "750727362669608961" in said
    assert "750727362669608963" in said
    confirm = operator.get(confirm_url(row, "break_lease"))
    assert f"Type the number {LARGE_ID} to confirm" in plain(confirm)
    form = {"seen": confirm.context["token"], "reason": "x", "typed": str(LARGE_ID)}
    assert operator.post(confirm_url(row, "break_lease"), form).status_code == 303
    assert numbers(operator.get(JOBS, {"q": str(LARGE_ID)})) == [LARGE_ID]


def test_stored_html_is_text(operator: Client) -> None:
    row = JobFactory(
        running=True,
        task=SCRIPT,
        queue=SCRIPT,
        tenant=SCRIPT,
        shard_key=SCRIPT,
        lane=1,
        operation_key=SCRIPT,
        last_error_class=SCRIPT,
        last_error=SCRIPT,
    )
    JobPayloadFactory(job_id=row.pk, args=[SCRIPT, {"__html__": SCRIPT}], kwargs={SCRIPT: SCRIPT})
    JobResult.objects.create(job_id=row.pk, value=SCRIPT)
    AttemptFactory(job_id=row.pk, error_class=SCRIPT, message=SCRIPT, outcome=SCRIPT)
    queue = QueueFactory(name=SCRIPT, paused=True, pause_reason=SCRIPT, paused_by=SCRIPT)
    worker = WorkerFactory(host=SCRIPT, release=SCRIPT, queues=[SCRIPT], excluded_queues=[SCRIPT], tasks=[SCRIPT])
    action = OperatorActionFactory(verb=SCRIPT, reason=SCRIPT, ticket=SCRIPT, actor_name=SCRIPT, facts={"x": SCRIPT})
    urls = [*LISTS, *(page(each) for each in (row, queue, worker, action)), page(row, "history")]
    urls += [confirm_url(row, "break_lease"), confirm_url(queue, "resume_queue")]
    for url in urls:
        shown = operator.get(url, follow=True)
        assert shown.status_code == 200, url
        assert "<script>alert" not in shown.text, url
    for url in (JOBS, page(row), confirm_url(row, "break_lease")):
        assert "&lt;script&gt;" in operator.get(url).text, url
    refused = operator.post(confirm_url(row, "break_lease"), {"reason": f'"><{SCRIPT}', "ticket": SCRIPT})
    assert "<script>alert" not in refused.text


def test_history_shows_what_operators_did(operator: Client) -> None:
    row = JobFactory()
    mine = OperatorActionFactory(target_id=str(row.pk), reason="because")
    OperatorActionFactory(target_id=f"{row.pk}0")
    answer = operator.get(page(row, "history"), follow=True)
    assert numbers(answer) == [mine.pk]
    assert "1 → 1 → 2" in plain(answer)


# -- queues and workers -------------------------------------------------------------------------------------


def test_the_queue_list_tells_who_paused_and_why(operator: Client) -> None:
    QueueFactory(name="emails", paused=True)
    said = plain(operator.get("/admin/pgqueue/queue/"))
    assert re.search(r"emails paused 0 - 0 0 0 0.0 ada gateway down never", said)


def test_a_pause_that_is_over_is_not_shown_as_one(operator: Client) -> None:
    row = QueueFactory(name="emails", lapsed=True)
    assert re.search(r"emails active 0 - 0 0 0 0.0 - - -", plain(operator.get("/admin/pgqueue/queue/")))
    assert "gateway down" not in operator.get(page(row)).text


@pytest.mark.parametrize(
    ("traits", "state"),
    [
        ({}, "alive"),
        ({"heartbeat_at": from_now(-59)}, "alive"),
        ({"heartbeat_at": from_now(-61)}, "SILENT"),
        ({"heartbeat_at": from_now(-61), "lease_seconds": 120}, "alive"),
        ({"draining": True}, "draining"),
        ({"draining": True, "heartbeat_at": from_now(-61)}, "SILENT"),
        ({"stopped_at": from_now(-500), "heartbeat_at": from_now(-500)}, "stopped"),
        ({"heartbeat_at": from_now(3600)}, "alive"),
    ],
)
def test_a_worker_is_silent_when_its_lease_would_be_over(traits: dict[str, Any], state: str, operator: Client) -> None:
    row = WorkerFactory(**traits)
    assert f" {row.pid} {state} " in plain(operator.get("/admin/pgqueue/worker/"))
    assert state in plain(operator.get(page(row)))


def test_workers_are_listed_newest_first(operator: Client) -> None:
    silent = WorkerFactory(heartbeat_at=from_now(-3600))
    stopped = WorkerFactory(stopped_at=from_now(-5))
    alive = WorkerFactory()
    assert numbers(operator.get("/admin/pgqueue/worker/")) == [alive.pk, stopped.pk, silent.pk]


# -- manners ------------------------------------------------------------------------------------------------


def test_no_page_has_inline_script_or_style(operator: Client) -> None:
    row, queue = JobFactory(running=True, last_error_class="x"), QueueFactory(paused=True)
    AttemptFactory(job_id=row.pk)
    urls = [*LISTS, page(row), page(queue), page(WorkerFactory()), page(OperatorActionFactory())]
    urls += [confirm_url(row, "break_lease"), confirm_url(row, "hold"), confirm_url(queue, "resume_queue")]
    answers = [operator.get(url) for url in urls] + [operator.post(urls[-3], {"reason": ""})]
    for answer in answers:
        assert answer.status_code in (200, 409)
        assert not re.findall(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\sstyle=|\son[a-z]+=|javascript:", answer.text)


def test_the_confirm_page_can_be_read_aloud(operator: Client) -> None:
    row = JobFactory(running=True)
    shown = operator.get(confirm_url(row, "break_lease")).text
    own = shown[shown.index('id="content-main"') :]
    fields = set(re.findall(r'<input type="text"[^>]*id="([^"]+)"', own))
    assert fields == {"id_reason", "id_ticket", "id_typed"} == set(re.findall(r'<label for="([^"]+)"', own))
    for markup in (shown, operator.get(page(row)).text):
        assert not re.search(r"<th(?![^>]*scope=)[\s>]", markup[markup.index('id="content-main"') :])
    assert own.count("<caption") == own.count("<table")
    refused = operator.post(confirm_url(row, "break_lease"), {}).text
    assert re.search(r'<div[^>]*role="alert" tabindex="-1" autofocus', refused)
