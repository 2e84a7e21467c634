"""The page that answers whether anything is on fire, and the figures beside queues and workers."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from pgqueue.admin import survey as surveys
from pgqueue.admin.charts import HEIGHT, STACKED, WIDTH, columns, dots, percentile, points
from pgqueue.admin.needs import capped
from pgqueue.models import Job, Queue
from pgqueue.protocol import surveying
from tests.admin.console import client_with, page
from tests.admin.test_pages import JOBS, numbers, plain
from tests.factories import (
    JobFactory,
    LimitFactory,
    MinuteStatFactory,
    OperatorActionFactory,
    QueueFactory,
    WorkerFactory,
    from_now,
)
from tests.races.rows import add_jobs

pytestmark = pytest.mark.django_db
OVERVIEW = "/admin/pgqueue/overview/"
ERROR = "shop.errors.CardDeclined"


def look(client: Client, **query: str) -> Any:
    """Open the overview with figures of now."""
    surveys.forget()
    answer = client.get(OVERVIEW, query)
    assert answer.status_code == 200
    return answer


def test_calm_is_said_to_be_calm(operator: Client) -> None:
    said = plain(look(operator))
    assert "Nothing: no outcome is unknown, no queue is paused, no worker is silent, no error is frequent." in said
    assert "No job was given up within seven days." in said
    assert "Nobody has acted yet." in said


def test_what_needs_a_person_comes_first_with_a_link_to_it(operator: Client) -> None:
    JobFactory(unknown=True)
    old = JobFactory(unknown=True, claimed_at=from_now(-2_500))
    queue = QueueFactory(name="emails", paused=True)
    worker = WorkerFactory(heartbeat_at=from_now(-74))
    JobFactory(running=True, worker_id=worker.pk, lease_until=from_now(48))
    said = plain(look(operator))
    assert f"2 jobs have an unknown outcome, the oldest for 41 min ({old.task} #{old.pk})." in said
    assert "Queue “emails” was paused 5 s ago by ada: “gateway down”. No end is set." in said
    assert f"Worker {worker.pk} on host-1 has been silent for 7" in said
    assert re.search(r"Leases it holds: 1; the first ends in [34]\d s", said)
    needs = look(operator).context["needs"]
    assert needs[1]["url"] == page(queue)
    assert said.index("unknown outcome") < said.index("Ready")


def test_every_number_leads_to_the_rows_that_explain_it(operator: Client) -> None:
    traits = ({}, {"future": True}, {"retrying": True}, {"running": True}, {"unknown": True}, {"paused": True})
    for each in traits:
        JobFactory(**each)
    answer = look(operator)
    shown = {str(number["label"]): number for number in answer.context["numbers"]}
    for label in ("Ready", "Scheduled", "Waiting to retry", "Outcome unknown", "Held"):
        assert shown[label]["value"] == "1", label
        assert len(numbers(operator.get(shown[label]["url"]))) == 1, label
    assert shown["Running"]["value"] == "1 of 0 slots"
    assert len(numbers(operator.get(shown["Running"]["url"]))) == 1
    assert shown["Rows of jobs"]["value"] == "6"


def test_an_error_that_is_frequent_needs_a_person(operator: Client) -> None:
    MinuteStatFactory(outcome="dead", error=ERROR, minute=from_now(-600), jobs=12)
    dead = JobFactory.create_batch(
        9, dead=True, last_error_class=ERROR, finished_at=from_now(-60), created_at=from_now(-90)
    )
    assert look(operator).context["needs"] == []
    JobFactory(dead=True, last_error_class=ERROR, finished_at=from_now(-60), created_at=from_now(-90))
    (need,) = look(operator).context["needs"]
    assert (
        need["text"] == "12 jobs were given up within 1 hour with CardDeclined, and 10 of them are still dead. "
        "Look at one. While it goes on, pause its queue."
    )
    assert "ended%3A1h" in need["url"]
    Job.objects.filter(pk=dead[0].pk).delete()
    assert look(operator).context["needs"] == [], "an alert ends with its cause"


def test_what_failed_and_was_repaired_is_told_apart_from_what_is_still_dead(operator: Client) -> None:
    MinuteStatFactory(outcome="dead", error=ERROR, minute=from_now(-600), jobs=334)
    answer = look(operator)
    assert "334, 0 still dead" in plain(answer)
    (failure,) = answer.context["failures"]
    assert [(cell["jobs"], cell["still"], cell["url"]) for cell in failure["cells"]] == [(334, "0 still dead", "")] * 4


def test_jobs_of_lost_workers_are_not_counted_among_the_slots_of_live_ones(operator: Client) -> None:
    WorkerFactory(slots=10)
    JobFactory.create_batch(5, running=True)
    JobFactory.create_batch(100, expired=True)
    assert "5 of 10 slots, and 100 whose lease ran out" in plain(look(operator))


def test_forbidden_attempts_do_not_push_deeds_out(operator: Client) -> None:
    OperatorActionFactory(verb="requeue", reason="the repair")
    OperatorActionFactory.create_batch(20, outcome="forbidden", reason="ALL FIXED")
    said = plain(look(operator))
    assert "the repair" in said
    assert "ALL FIXED" not in said


def test_reasons_are_for_who_may_read_the_audit_log() -> None:
    OperatorActionFactory(verb="requeue", reason="S3CRET reason", ticket="OPS-1")
    said = plain(look(client_with("viewer", "view_overview", "view_job")))
    assert "S3CRET" not in said
    assert "OPS-1" not in said


def test_a_job_in_quarantine_holds_nobody_up(operator: Client) -> None:
    JobFactory(running=True, alone=True, worker_id=WorkerFactory(parent_id=WorkerFactory().pk).pk)
    JobFactory()
    assert not [need for need in look(operator).context["needs"] if "alone" in need["text"]]


def test_a_job_that_runs_alone_is_said_to_hold_others_up(operator: Client) -> None:
    alone = JobFactory(running=True, alone=True)
    assert not [need for need in look(operator).context["needs"] if "alone" in need["text"]]
    JobFactory()
    (text,) = [need["text"] for need in look(operator).context["needs"] if "alone" in need["text"]]
    assert f"#{alone.pk} has lost a lease before, so it runs alone: worker -101 takes nothing else" in text


def test_failures_by_error_lead_to_the_same_jobs(operator: Client) -> None:
    for ago in (600, 2 * 3600):
        JobFactory(dead=True, last_error_class=ERROR, finished_at=from_now(-ago), created_at=from_now(-9000))
        MinuteStatFactory(outcome="dead", error=ERROR, minute=from_now(-ago))
    (failure,) = look(operator).context["failures"]
    assert failure["error"] == "CardDeclined"
    assert [cell["jobs"] for cell in failure["cells"]] == [1, 2, 2, 2]
    for cell in failure["cells"]:
        assert len(numbers(operator.get(cell["url"]))) == cell["jobs"]


def test_the_chart_and_its_table_have_the_same_numbers(operator: Client) -> None:
    MinuteStatFactory(jobs=7, minute=from_now(-30), waits=[0, 0, 7], runs=[7])
    MinuteStatFactory(jobs=3, outcome="dead", error="x", minute=from_now(-30), waits=[3], runs=[3])
    MinuteStatFactory(jobs=5, minute=from_now(-3_000), waits=[5], runs=[0] * 10 + [5])
    for range in ("1h", "6h", "24h", "7d", "nonsense"):
        answer = look(operator, range=range)
        counts = [each["column"].counts for each in answer.context["flow"]["columns"] if each["column"].bars]
        assert [sum(column) for column in zip(*counts, strict=True)] == [12, 3, 0, 0, 0]
        assert answer.context["flow"]["total"] == 15
        assert answer.text.count("Show as table") == 3
        assert 'role="img" aria-labelledby="pgqueue-flow-title"' in answer.text
    wait, run = look(operator).context["times"]
    assert (wait["half_now"], wait["most_now"]) == ("≤ 0.001 s", "≤ 0.004 s")
    assert (run["half_now"], run["most_now"]) == ("≤ 0.001 s", "≤ 1 s")


def test_the_last_actions_are_told(operator: Client) -> None:
    OperatorActionFactory(
        verb="pause_queue", target_kind="queue", target_id="emails", reason="SMTP down", ticket="OPS-4"
    )
    said = plain(look(operator))
    assert "ada Pause queue queue emails applied ( audit entry ) SMTP down OPS-4" in said


@pytest.mark.case("M04")
def test_twenty_tabs_cost_one_set_of_eight_queries(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "FRESH_SECONDS", 3600.0)
    surveys.forget()
    found = []
    for _ in range(20):
        with CaptureQueriesContext(connection) as queries:
            operator.get(OVERVIEW)
        found.append([query["sql"] for query in queries if "pgqueue_" in query["sql"]])
    assert [len(each) for each in found] == [8] + [0] * 19


@pytest.mark.case("M01")
def test_no_count_goes_beyond_its_cap(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveying, "COUNTED_AT_MOST", 3)
    add_jobs(9)
    JobFactory(future=True)
    shown = {str(number["label"]): number["value"] for number in look(operator).context["numbers"]}
    assert (shown["Ready"], shown["Scheduled"]) == ("≥ 3", "≥ 0")
    assert capped(3) == "3"
    assert capped(4) == "≥ 3"


def test_the_figures_are_there_for_programs(operator: Client) -> None:
    QueueFactory(name="emails", paused=True)
    JobFactory()
    surveys.forget()
    told = operator.get(reverse("admin:pgqueue_overview_json")).json()
    assert told["ready"] == 1
    assert told["paused_queues"] == ["emails"]
    stranger = client_with("op9", "view_job")
    assert stranger.get(reverse("admin:pgqueue_overview_json")).status_code == 403
    assert stranger.get(OVERVIEW).status_code == 403


def test_the_navigation_shows_what_one_may_see() -> None:
    client = client_with("op9", "view_job", "view_queue")
    shown = client.get(JOBS).context["navigation"]
    assert [each["key"] for each in shown] == ["queue", "job"]
    assert [each["is_current"] for each in shown] == [False, True]
    assert "Times: UTC (UTC+0000)" in plain(client.get(JOBS))


def test_a_paused_queue_is_told_above_the_jobs(operator: Client) -> None:
    QueueFactory(name="emails", paused_for_now=True)
    QueueFactory(name="old", lapsed=True)
    said = plain(operator.get(JOBS))
    assert re.search("Queue “emails” was paused 5 s ago by ada: “gateway down”. It resumes in (60|59) s.", said)
    assert "Queue “old”" not in said


def test_queues_are_shown_with_what_is_in_them(operator: Client) -> None:
    QueueFactory(name="mail")
    for traits in ({}, {}, {"future": True}, {"retrying": True}, {"running": True}, {"unknown": True}):
        JobFactory(queue="mail", **traits)
    MinuteStatFactory(queue="mail", jobs=600, minute=from_now(-60))
    answer = operator.get("/admin/pgqueue/queue/")
    assert re.search(r"mail active 2 \d+ s 1 1 1 2.0 - - -", plain(answer))
    links = re.findall(rf'href="({JOBS}\?queue=mail[^"]*)"', answer.text)
    assert [len(numbers(operator.get(link.replace("&amp;", "&")))) for link in links] == [2, 1, 1, 1]


def test_workers_are_shown_with_their_leases(operator: Client) -> None:
    worker = WorkerFactory()
    for left in (22, 50):
        JobFactory(running=True, worker_id=worker.pk, lease_until=from_now(left))
    answer = operator.get("/admin/pgqueue/worker/")
    assert re.search(r"2/10 in 2[12] s", plain(answer))
    (link,) = re.findall(rf'href="({JOBS}[^"]*worker[^"]*)"', answer.text)
    assert len(numbers(operator.get(link.replace("&amp;", "&")))) == 2


# -- charts, which know no database ---------------------------------------------------------------------------


def test_a_column_is_as_high_as_its_share_of_the_highest() -> None:
    drawn, top = columns([{"succeeded": 3, "dead": 1}, {}, {"succeeded": 2}])
    assert top == 4
    assert [(bar.kind, bar.y, bar.height) for bar in drawn[0].bars] == [("succeeded", 30.0, 90.0), ("dead", 0.0, 30.0)]
    assert drawn[1].bars == ()
    assert [(bar.x, bar.y, bar.height) for bar in drawn[2].bars] == [(round(2 * WIDTH / 3, 1), HEIGHT / 2, HEIGHT / 2)]


def test_percentiles_are_upper_bounds_of_their_bucket() -> None:
    assert percentile({}, 0.5) is None
    assert percentile({1: 10}, 0.95) == 0.001
    assert percentile({1: 94, 11: 6}, 0.5) == 0.001
    assert percentile({1: 94, 11: 6}, 0.95) == 1.024


def test_a_line_breaks_where_nothing_was_measured() -> None:
    assert points([None, None], 1.0) == dots([None, None], 1.0) == []
    assert points([1.0, 0.5, None, 0.0], 1.0) == ["75.0,0.0 225.0,60.0"]


def test_few_values_are_points_and_many_a_line() -> None:
    assert dots([1.0, 0.5, None, 0.0], 1.0) == ["75.0,0.0", "225.0,60.0", "525.0,120.0"]
    assert dots([1.0] * 4, 1.0) == ["75.0,0.0", "225.0,0.0", "375.0,0.0", "525.0,0.0"]
    assert dots([1.0] * 5, 1.0) == []


def test_the_legend_is_drawn_as_the_bars_are(operator: Client) -> None:
    for kind in STACKED:
        MinuteStatFactory(outcome=kind, minute=from_now(-30), error="x" if kind == "dead" else "")
    text = look(operator).text
    for kind in STACKED:
        drawn = f'<rect class="pgqueue-bar pgqueue-bar-{kind}" fill="url(#pgqueue-ink-{kind})" '
        assert text.count(drawn) == 2, kind
        assert f'<pattern id="pgqueue-ink-{kind}"' in text
    assert "a job of 20 s counts as ≤ 33 s" in plain(look(operator))


def test_a_look_is_never_compiled(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan whose cost is overestimated would be compiled for longer than it runs."""
    seen = []

    def note(*args: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SHOW jit")
            seen.append(cursor.fetchone()[0])

    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL jit = on")
    monkeypatch.setattr("pgqueue.admin.queues.QueueAdmin.read_beside", note)
    operator.get("/admin/pgqueue/queue/")
    note()
    assert seen == ["off", "on"]


def test_a_number_of_a_queue_says_that_there_may_be_more(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgqueue.protocol.surveying.COUNTED_AT_MOST", 2)
    QueueFactory(name="default")
    for _ in range(4):
        JobFactory()
    JobFactory(running=True)
    (row,) = operator.get("/admin/pgqueue/queue/").context["cl"].result_list
    of = admin.site._registry[Queue]
    assert "≥ 2" in of.ready(row)
    assert "≥ 0" in of.retrying(row)
    assert ">1</a>" in of.running(row)


@pytest.mark.parametrize(("name", "most"), [("queue", 2), ("limit", 2), ("worker", 2), ("reconcile", 2)])
def test_a_list_of_little_things_takes_two_queries(name: str, most: int, operator: Client) -> None:
    for make in (QueueFactory, LimitFactory, WorkerFactory):
        make()
    JobFactory(unknown=True)
    JobFactory(running=True)
    with CaptureQueriesContext(connection) as queries:
        operator.get(f"/admin/pgqueue/{name}/")
    assert len([query for query in queries if "pgqueue_" in query["sql"]]) <= most


def test_the_rows_of_a_bulk_action_are_told_as_one(operator: Client) -> None:
    """Else hundreds of them would push out the pause that came before."""
    OperatorActionFactory(verb="pause_queue", target_kind="queue", target_id="emails")
    bulk = "0c3a2f0e-5d1b-4c58-9f0e-7a2b7d0f9c11"
    for number in range(12):
        OperatorActionFactory(verb="requeue", target_id=str(number), idempotency_key=f"bulk:{bulk}:{number}")
    actions = look(operator).context["actions"]
    assert [action["target"] for action in actions] == ["12 jobs", "queue emails"]
    assert f"/admin/pgqueue/bulkaction/{bulk}/change/" in actions[0]["entry"]
