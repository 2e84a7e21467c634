"""Pages by key, the search box, and looks that take too long."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pgqueue.admin.keyset import Order
from pgqueue.models import Job
from tests.admin.console import client_with
from tests.admin.test_pages import JOBS, numbers, plain
from tests.factories import (
    EffectFactory,
    JobFactory,
    JobPayloadFactory,
    OperationKeyFactory,
    OperatorActionFactory,
)
from tests.races.rows import add_jobs

pytestmark = pytest.mark.django_db


def walk(client: Client, url: str, way: str = "older_url") -> list[list[int]]:
    """Follow the links of a list to its end and return the numbers on each page."""
    pages = []
    while url:
        answer = client.get(url)
        pages.append(numbers(answer))
        link = getattr(answer.context["cl"], way)
        url = "" if link is None else JOBS + link
    return pages


def test_pages_by_key_show_every_row_once_and_lead_back(operator: Client) -> None:
    ids = [job.pk for job in add_jobs(120, dead=True)]
    pages = walk(operator, JOBS + "?state=dead")
    assert [len(page) for page in pages] == [50, 50, 20]
    assert [id for page in pages for id in page] == sorted(ids, reverse=True)
    last = operator.get(JOBS + "?state=dead")
    for _ in range(2):
        last = operator.get(JOBS + last.context["cl"].older_url)
    back = walk(operator, JOBS + last.context["cl"].newer_url, "newer_url")
    assert back == [pages[1], pages[0]]


def test_rows_that_come_meanwhile_move_no_page(operator: Client) -> None:
    add_jobs(60)
    first = operator.get(JOBS)
    second = numbers(operator.get(JOBS + first.context["cl"].older_url))
    add_jobs(30)
    assert numbers(operator.get(JOBS + first.context["cl"].older_url)) == second


def test_a_page_can_be_shared_and_keeps_filter_and_order(operator: Client) -> None:
    add_jobs(60, dead=True)
    link = operator.get(JOBS + "?state=dead&sort=oldest").context["cl"].older_url
    assert "state=dead" in link
    assert "sort=oldest" in link
    other = client_with("op2", "view_job")
    assert numbers(other.get(JOBS + link)) == numbers(operator.get(JOBS + link)) != []


def test_a_search_and_a_filter_begin_at_the_first_page(operator: Client) -> None:
    add_jobs(60, dead=True)
    shown = operator.get(JOBS + operator.get(JOBS + "?state=dead").context["cl"].older_url)
    form = shown.text[shown.text.index('id="changelist-search"') : shown.text.index("</form>")]
    assert 'name="after"' not in shown.text.partition('id="changelist-form"')[0].rpartition('id="changelist-search"')[2]
    assert 'name="state"' in form or 'name="state"' in shown.text
    # Its element is named anew in Django 6.1.
    sidebar = re.split("</(?:nav|search)>", shown.text.partition('id="changelist-filter"')[2])[0]
    filters = re.findall(r'href="(\?[^"]*state=[^"]*)"', sidebar)
    assert filters
    assert not [link for link in filters if "after=" in link or "before=" in link]


@pytest.mark.parametrize("cursor", ["x", "", "%00", "bnVsbA", "WzFd" * 500, "W10", "WyJhIl0", "WzFlNDAwXQ", "W3RydWVd"])
def test_a_cursor_that_is_none_of_ours_breaks_nothing(cursor: str, operator: Client) -> None:
    JobFactory()
    for name in ("after", "before"):
        assert operator.get(f"{JOBS}?{name}={cursor}").status_code in (200, 302)


def test_the_longest_running_are_ordered_only_where_they_run(operator: Client) -> None:
    rows = [JobFactory(running=True) for _ in range(3)]
    Job.objects.filter(pk=rows[2].pk).update(claimed_at=rows[0].created_at.replace(year=2020))
    assert numbers(operator.get(JOBS + "?state=running&sort=longest"))[0] == rows[2].pk
    assert numbers(operator.get(JOBS + "?sort=longest"))[0] == rows[2].pk == max(row.pk for row in rows)
    assert len(walk(operator, JOBS + "?state=running&sort=longest")) == 1


def test_an_order_reads_back_its_own_cursor() -> None:
    order = Order(("claimed_at", "id"))
    row = JobFactory(running=True)
    assert order.read(order.mark(row)) == [row.claimed_at, row.pk]
    assert Order(("id",)).read(order.mark(row)) is None


@pytest.fixture
def seeded(db: None) -> Job:
    """A dead job that every qualifier finds, among others."""
    row = JobFactory(
        dead=True,
        queue="payments",
        tenant="acme",
        lane=1,
        operation_key="order:5531",
        last_error_class="shop.CardDeclined",
    )
    JobFactory(dead=True)
    JobFactory(running=True)
    OperationKeyFactory(job_id=row.pk, task=row.task, key="order:5531")
    EffectFactory(job_id=row.pk, stage="confirmed", remote_reference="ch_9Q")
    JobPayloadFactory(job_id=row.pk, kwargs={"order": 5531, "card": {"kind": "visa card"}})
    return row


@pytest.mark.parametrize(
    "term",
    [
        "{id}",
        "#{id}",
        "id:{id}",
        "key:order:5531",
        "queue:payments",
        "queue:payments state:dead",
        "error:shop.CardDeclined",
        "error:CardDeclined ended:1h",
        "tenant:acme",
        "op:ch_9Q",
        "args.order:5531",
        'args.card.kind:"visa card"',
        "task:{task} queue:payments",
    ],
)
def test_each_qualifier_finds_the_job(term: str, seeded: Job, operator: Client) -> None:
    assert numbers(operator.get(JOBS, {"q": term.format(id=seeded.pk, task=seeded.task)})) == [seeded.pk]


def test_the_key_of_a_job_without_one_is_its_number(operator: Client) -> None:
    row = JobFactory()
    assert numbers(operator.get(JOBS, {"q": f"key:job:{row.pk}"})) == [row.pk]


@pytest.mark.parametrize(
    ("term", "says"),
    [
        ("card declined", "free text is not searched"),
        ("colour:red", "is not searched; these are: id: key:"),
        ("state:broken", "is no value of state:"),
        ("id:x", "is no value of id:"),
        ("queue:", "has no value"),
        ("ended:yesterday", "is no value of ended:"),
        ('queue:"a', "A quote is not closed."),
    ],
)
def test_what_is_not_understood_is_said_and_finds_nothing(term: str, says: str, seeded: Job, operator: Client) -> None:
    answer = operator.get(JOBS, {"q": term})
    assert numbers(answer) == []
    assert says in plain(answer)
    assert 'role="alert"' in answer.text


def test_arguments_are_searched_by_who_may_see_them(seeded: Job) -> None:
    client = client_with("op1", "view_job")
    answer = client.get(JOBS, {"q": "args.order:5531"})
    assert numbers(answer) == []
    assert "pgqueue.view_job_args" in plain(answer)


@pytest.mark.parametrize(
    "term", ["\0", "id:" + "9" * 30, "args.:1", "args.a..b:x", "worker:-101", "error:%", "ended:999999d"]
)
def test_no_search_breaks_the_page(term: str, operator: Client) -> None:
    JobFactory(running=True)
    assert operator.get(JOBS, {"q": term}).status_code == 200


def test_a_look_that_takes_too_long_says_so(operator: Client, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.PGQUEUE = {"CONSOLE_TIMEOUT_SECONDS": 0.05}
    JobFactory()
    rows = Job.objects.extra(where=["pg_sleep(1) IS NOT NULL"])
    monkeypatch.setattr("pgqueue.admin.jobs.JobAdmin.get_search_results", lambda *args: (rows, False))
    answer = operator.get(JOBS)
    assert answer.status_code == 503
    assert "This took too long" in plain(answer)
    monkeypatch.undo()
    # The connection is as good as before, its bound is gone, and it may write again.
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting('statement_timeout'), current_setting('transaction_read_only')")
        assert cursor.fetchone() == ("0", "off")
    assert operator.get(JOBS).status_code == 200


def test_a_look_cannot_write(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    row = JobFactory()

    def meddle(*args: Any) -> Any:
        Job.objects.update(priority=5)

    monkeypatch.setattr("pgqueue.admin.jobs.JobAdmin.get_search_results", meddle)
    with pytest.raises(Exception, match="read-only transaction"):
        operator.get(JOBS)
    monkeypatch.undo()
    assert Job.objects.get(pk=row.pk).priority == 0


@pytest.mark.case("M09")
def test_a_job_that_was_retried_before_is_acted_on_by_its_number(operator: Client) -> None:
    row = JobFactory(dead=True)
    OperatorActionFactory.create_batch(2, target_id=str(row.pk), verb="requeue")
    assert operator.get(f"{JOBS}{row.pk}/do/requeue/").context["token"]


@pytest.mark.case("M03")
def test_a_filter_finds_the_few_behind_the_many(operator: Client) -> None:
    old = [JobFactory(succeeded=True).pk for _ in range(5)]
    add_jobs(2_000)
    assert numbers(operator.get(JOBS, {"state": "succeeded"})) == old[::-1]


@pytest.mark.case("M06")
@pytest.mark.case("M12")
def test_a_list_takes_no_lock_and_three_queries(operator: Client) -> None:
    add_jobs(60)
    with CaptureQueriesContext(connection) as queries:
        operator.get(JOBS)
    ours = [query["sql"] for query in queries if "pgqueue_" in query["sql"]]
    # The rows, the names of the queues for the filter, and why the due ones wait.
    assert len(ours) == 3
    assert not [sql for sql in ours if re.search(r"FOR (NO KEY )?(UPDATE|SHARE)", sql)]


@pytest.mark.parametrize("asked", [{"state": "running"}, {"state": "unknown"}, {"q": "state:pending due:now"}])
@pytest.mark.parametrize("sort", ["newest", "oldest"])
def test_live_jobs_are_found_first_and_sorted_then(asked: dict[str, str], sort: str, operator: Client) -> None:
    """However few they are, and however many newer ones have ended: no walk along the primary key."""
    live = [JobFactory(running=True), JobFactory(unknown=True), JobFactory()]
    add_jobs(5_000, succeeded=True)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE pgqueue_job")
    with CaptureQueriesContext(connection) as queries:
        found = numbers(operator.get(JOBS, {**asked, "sort": sort}))
    assert len(found) == 1
    assert found[0] in [job.pk for job in live]
    (sql,) = [query["sql"] for query in queries if 'FROM "pgqueue_job"' in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "pgqueue_job_pkey" not in plan
    assert "Seq Scan" not in plan


@pytest.mark.parametrize(("least", "sorting"), [(1, '"id" DESC'), (10**6, "+ 0) DESC")])
def test_a_large_backlog_is_walked_and_a_small_one_sorted(
    least: int, sorting: str, operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.admin.jobs.LARGE_BACKLOG", least)
    add_jobs(20)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE pgqueue_job")
    for asked in ("?state=pending", "?q=state:retrying+queue:default"):
        with CaptureQueriesContext(connection) as queries:
            assert operator.get(JOBS + asked).status_code == 200
        (sql,) = [query["sql"] for query in queries if 'FROM "pgqueue_job"' in query["sql"]]
        assert sorting in sql
