"""Many jobs at once: a frozen set, its preview, its run in steps, and what came of each row."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pgqueue import bulk as bulks
from pgqueue.models import BulkAction, BulkItem, Job, OperatorAction
from pgqueue.operations import Actor
from pgqueue.states import State
from tests.admin.console import client_with, page
from tests.admin.test_pages import JOBS, plain
from tests.admin.test_verbs import lock
from tests.factories import JobFactory, QueueFactory
from tests.races.rows import add_jobs

pytestmark = pytest.mark.django_db
EVERYTHING = f"{JOBS}everything/"
ADA = Actor(id="1", name="ada")
DONE = {"reason": "provider is back", "ticket": "OPS-7"}


def freeze(client: Client, verb: str = "requeue", asked: str = "?state=dead") -> BulkAction:
    """Freeze all that match and return the set."""
    answer = client.post(EVERYTHING + asked, {"verb": verb})
    assert answer.status_code == 303
    found = BulkAction.objects.order_by("-created_at").first()
    assert found is not None
    assert answer.headers["Location"] == page(found)
    return found


def step(client: Client, bulk: BulkAction, name: str, **form: Any) -> Any:
    """Post one step of a run."""
    return client.post(f"{page(bulk).removesuffix('change/')}do/{name}/", form)


def outcomes(bulk: BulkAction) -> dict[int, str | None]:
    """Return what came of each job of a set."""
    return dict(BulkItem.objects.filter(bulk_id=bulk.pk).values_list("job_id", "outcome"))


def test_a_frozen_set_does_nothing_and_takes_nothing_new(operator: Client) -> None:
    ids = [job.pk for job in add_jobs(120, dead=True)]
    bulk = freeze(operator)
    add_jobs(5, dead=True)
    assert Job.objects.filter(state="dead").count() == 125
    assert sorted(outcomes(bulk)) == sorted(ids)
    for _ in range(20):  # A slow machine takes more than one step.
        step(operator, bulk, "run", **DONE)
    assert Job.objects.filter(state="dead").count() == 5
    assert BulkAction.objects.get().state == "done"
    assert OperatorAction.objects.filter(outcome="applied", verb="requeue", reason=DONE["reason"]).count() == 120


def test_ticked_rows_are_frozen(operator: Client) -> None:
    rows = [JobFactory(dead=True) for _ in range(3)]
    form = {"action": "requeue", "_selected_action": [rows[0].pk, rows[2].pk], "index": "0"}
    answer = operator.post(JOBS, form)
    assert answer.status_code == 303
    assert sorted(outcomes(BulkAction.objects.get())) == [rows[0].pk, rows[2].pk]


def test_the_cap_holds_also_for_a_hand_made_select_across(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulks, "CAP", 3)
    add_jobs(10, dead=True)
    first = Job.objects.first()
    form = {"action": "requeue", "_selected_action": [first.pk], "index": "0", "select_across": "1"}
    assert operator.post(JOBS, form).status_code == 303
    bulk = BulkAction.objects.get()
    assert (bulk.size, bulk.capped, len(outcomes(bulk))) == (3, True, 3)
    assert "More matched" in plain(operator.get(page(bulk)))


def test_the_preview_says_how_many_can_and_why_others_cannot(operator: Client) -> None:
    for traits in (
        {"dead": True},
        {"dead": True, "queue": "mail"},
        {"cancelled": True},
        {"running": True},
        {"unknown": True},
    ):
        JobFactory(**traits)
    gone = JobFactory(dead=True)
    changed = JobFactory(dead=True)
    bulk = freeze(operator, asked="")
    gone.delete()
    Job.objects.filter(pk=changed.pk).update(version=99)
    preview = operator.get(page(bulk)).context["preview"]
    assert preview["can"] == 3
    assert sorted(jobs for _why, jobs in preview["skipped"]) == [1, 1, 1, 1]
    assert dict(preview["queues"]) == {"default": 2, "mail": 1}
    said = plain(operator.get(page(bulk)))
    assert "3 jobs can be acted on" in said
    assert "1 will be skipped: Changed since the set was frozen." in said
    assert "1 will be skipped: gone" in said


def test_every_row_has_its_own_outcome_and_the_csv_agrees(operator: Client) -> None:
    rows = [JobFactory(dead=True) for _ in range(4)]
    bulk = freeze(operator)
    Job.objects.filter(pk=rows[0].pk).update(version=99)
    rows[1].delete()
    Job.objects.filter(pk=rows[2].pk).update(state=State.SUCCEEDED)
    step(operator, bulk, "run", **DONE)
    expected = {rows[0].pk: "changed", rows[1].id or 0: "gone", rows[2].pk: "refused_state", rows[3].pk: "applied"}
    found = outcomes(bulk)
    assert sorted(found.values()) == sorted(expected.values())
    assert found[rows[0].pk] == "changed"
    assert found[rows[3].pk] == "applied"
    told = csv.DictReader(io.StringIO(operator.get(f"{page(bulk).removesuffix('change/')}csv/").text))
    assert {int(row["job_id"]): row["outcome"] for row in told} == found
    said = plain(operator.get(page(bulk)))
    assert "1 applied" in said
    assert "changed meanwhile, nothing done" in said
    again = step(operator, bulk, "again")
    assert again.status_code == 303
    assert len(outcomes(BulkAction.objects.exclude(pk=bulk.pk).get())) == 2


def test_a_run_goes_on_where_it_was_and_can_be_stopped(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulks, "MOST_AT_ONCE", 2)
    add_jobs(5, dead=True)
    bulk = freeze(operator)
    step(operator, bulk, "run", **DONE)
    assert sorted(map(str, outcomes(bulk).values())) == ["None"] * 3 + ["applied"] * 2
    assert "Go on" in operator.get(page(bulk)).text
    step(operator, bulk, "run")
    step(operator, bulk, "stop")
    step(operator, bulk, "run")
    assert sorted(map(str, outcomes(bulk).values())) == ["None"] + ["applied"] * 4
    assert BulkAction.objects.get().state == "stopped"
    assert Job.objects.filter(state="dead").count() == 1


def test_a_chunk_whose_request_is_lost_is_done_as_a_whole_or_not_at_all(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_jobs(2, dead=True)
    bulk = freeze(operator)
    with monkeypatch.context() as patched:
        patched.setattr("pgqueue.bulk.freezing.note", lost)
        with pytest.raises(ConnectionError):
            step(operator, bulk, "run", **DONE)
    assert Job.objects.filter(state="dead").count() == 2
    assert not OperatorAction.objects.exists()
    step(operator, bulk, "run")
    assert set(outcomes(bulk).values()) == {"applied"}
    assert list(OperatorAction.objects.values_list("outcome", flat=True)) == ["applied", "applied"]


def test_a_row_done_by_itself_and_never_noted_is_found_out_as_done(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a chunk is done row by row, a row is changed first and noted then: going on finds the replay."""
    ids = [job.pk for job in add_jobs(2, dead=True)]
    bulk = freeze(operator)
    with monkeypatch.context() as patched:
        patched.setattr("pgqueue.bulk.act_on_locked", refused)
        patched.setattr("pgqueue.bulk.freezing.note", lost)
        with pytest.raises(ConnectionError):
            step(operator, bulk, "run", **DONE)
    assert Job.objects.filter(state="pending").count() == 1
    step(operator, bulk, "run")
    assert outcomes(bulk) == dict.fromkeys(ids, "applied")
    assert sorted(OperatorAction.objects.values_list("outcome", flat=True)) == ["applied", "applied", "replayed"]


def refused(*args: Any) -> None:
    raise IntegrityError


def lost(*args: Any) -> None:
    raise ConnectionError


def test_a_job_of_a_taken_unique_key_holds_up_nobody(operator: Client) -> None:
    """One index refuses the chunk: its rows are done one by one, and only the one that is in the way is refused."""
    rows = [JobFactory(dead=True, unique_key="k" if number == 1 else None) for number in range(3)]
    JobFactory(unique_key="k", task=rows[1].task)
    bulk = freeze(operator)
    step(operator, bulk, "run", **DONE)
    assert [outcomes(bulk)[row.pk] for row in rows] == ["applied", "refused_duplicate", "applied"]
    assert BulkAction.objects.get().state == "done"


@pytest.mark.django_db(transaction=True)
def test_a_chunk_under_way_is_left_to_whoever_runs_it(operator: Client, open_connection: Callable[[], Any]) -> None:
    add_jobs(2, dead=True)
    bulk = freeze(operator)
    other = open_connection()
    with other.transaction():
        other.execute("SELECT FROM pgqueue_bulkaction WHERE id = %s FOR NO KEY UPDATE", [bulk.pk])
        other.execute("UPDATE pgqueue_bulkaction SET state = 'running', reason = 'why' WHERE id = %s", [bulk.pk])
        assert bulks.run_chunk(bulk.pk, actor=ADA) == 0
    assert bulks.run_chunk(bulk.pk, actor=ADA) == 2
    assert set(outcomes(bulk).values()) == {"applied"}


def test_a_chunk_takes_as_many_statements_as_one_row(operator: Client) -> None:
    taken = []
    for count in (1, 150):
        add_jobs(count, dead=True, stage="confirmed")
        bulk = freeze(operator)
        bulks.start(bulk.pk, actor=ADA, reason="why", ticket="", spread_seconds=0)
        with CaptureQueriesContext(connection) as queries:
            assert bulks.run_chunk(bulk.pk, actor=ADA) == count
        taken.append(len(queries))
    assert taken[0] == taken[1] <= 14


@pytest.mark.parametrize("asked", ["?state=dead", "?queue=default", "?q=state:dead", ""])
def test_a_set_is_frozen_by_one_statement(asked: str, operator: Client) -> None:
    jobs = add_jobs(20, dead=True)
    with CaptureQueriesContext(connection) as queries:
        bulk = freeze(operator, asked=asked)
    # The one besides is this test's own.
    assert len([query for query in queries if "pgqueue_" in query["sql"] and "auth_" not in query["sql"]]) == 2
    assert sorted(outcomes(bulk)) == [job.pk for job in jobs]
    positions = BulkItem.objects.filter(bulk_id=bulk.pk).order_by("job_id").values_list("position", flat=True)
    assert list(positions) == list(range(1, 21))


def test_a_queue_that_nobody_named_is_still_what_is_filtered_by(operator: Client) -> None:
    """Django drops a filter that has no choices: all that match would be all jobs there are."""
    job = JobFactory(dead=True, queue="mail")
    JobFactory(dead=True)
    assert list(outcomes(freeze(operator, asked="?queue=mail"))) == [job.pk]
    assert operator.post(EVERYTHING + "?queue=nowhere", {"verb": "requeue"}).status_code == 303
    assert BulkAction.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_locked_row_is_busy_and_holds_up_nobody(operator: Client, open_connection: Callable[[], Any]) -> None:
    rows = [JobFactory(dead=True) for _ in range(3)]
    bulk = freeze(operator)
    lock(open_connection(), rows[1])
    step(operator, bulk, "run", **DONE)
    assert outcomes(bulk) == {rows[0].pk: "applied", rows[1].pk: "busy", rows[2].pk: "applied"}


def test_retries_are_spread_over_the_minutes_asked_for(operator: Client) -> None:
    add_jobs(5, dead=True)
    bulk = freeze(operator)
    step(operator, bulk, "run", **DONE, spread="10")
    due = sorted((job.run_at - job.created_at).total_seconds() for job in Job.objects.all())
    assert [round((later - due[0]) / 60) for later in due] == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({}, "Say why"),
        ({"reason": "  "}, "Say why"),
        ({"reason": "x", "spread": "-1"}, "Spread over whole minutes"),
        ({"reason": "x", "spread": "soon"}, "Spread over whole minutes"),
    ],
)
def test_a_run_needs_its_form(form: dict[str, str], says: str, operator: Client) -> None:
    add_jobs(2, dead=True)
    bulk = freeze(operator)
    answer = step(operator, bulk, "run", ticket="OPS-7", **form)
    assert answer.status_code == 422
    assert says in plain(answer)
    assert 'value="OPS-7"' in answer.text
    assert Job.objects.filter(state="dead").count() == 2


def test_many_rows_need_their_number_typed(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgqueue.admin.bulkactions.TYPED_FROM", 3)
    add_jobs(4, dead=True)
    bulk = freeze(operator)
    assert step(operator, bulk, "run", **DONE).status_code == 422
    assert Job.objects.filter(state="dead").count() == 4
    assert step(operator, bulk, "run", **DONE, typed="4").status_code == 303
    assert Job.objects.filter(state="dead").count() == 0


def only_mail(user: Any, verb: str, queue: str, task: str | None) -> bool:
    return queue == "mail"


def test_rows_of_other_queues_are_forbidden_each(operator: Client, settings: Any) -> None:
    settings.PGQUEUE = {"CONSOLE_AUTHORIZE": "tests.admin.test_bulk.only_mail"}
    mine, other = JobFactory(dead=True, queue="mail"), JobFactory(dead=True)
    bulk = freeze(operator)
    assert "You may not do this in its queue." in plain(operator.get(page(bulk)))
    step(operator, bulk, "run", **DONE)
    assert outcomes(bulk) == {mine.pk: "applied", other.pk: "forbidden"}
    assert Job.objects.get(pk=other.pk).state == "dead"


def not_q2(user: Any, verb: str, queue: str, task: str | None) -> bool:
    return user.get_username() != "restricted" or queue != "q2"


def test_another_users_set_goes_on_in_the_name_of_who_started_it(operator: Client, settings: Any) -> None:
    settings.PGQUEUE = {"CONSOLE_AUTHORIZE": "tests.admin.test_bulk.not_q2"}
    row = JobFactory(dead=True, queue="q2")
    bulk = freeze(operator)
    bulks.start(bulk.pk, actor=Actor.of(operator.user), reason="senior's", ticket="", spread_seconds=0)
    restricted = client_with("restricted", "bulk_job", "requeue_job", "view_job", "view_bulkaction")
    for name in ("run", "stop"):
        assert step(restricted, bulk, name).status_code == 403
    assert outcomes(bulk) == {row.pk: None}
    assert BulkAction.objects.get().state == "running"
    colleague = client_with("colleague", "bulk_job", "requeue_job", "view_job", "view_bulkaction")
    step(colleague, bulk, "run")
    assert outcomes(bulk) == {row.pk: "applied"}
    assert OperatorAction.objects.get().actor_name == operator.user.get_username()


@pytest.mark.parametrize("lacking", ["bulk_job", "requeue_job", "view_job", "read_only"])
def test_who_may_not_can_neither_freeze_nor_run(lacking: str, operator: Client, settings: Any) -> None:
    ids = [job.pk for job in add_jobs(2, dead=True)]
    bulk = freeze(operator)
    held = {"bulk_job", "requeue_job", "view_job", "view_bulkaction"} - {lacking}
    client = client_with("op2", *held)
    if lacking == "read_only":
        settings.PGQUEUE = {"CONSOLE_READ_ONLY": True}
    assert client.post(EVERYTHING, {"verb": "requeue"}).status_code == 403
    form = {"action": "requeue", "_selected_action": ids, "index": "0"}
    assert client.post(JOBS, form).status_code in (200, 302, 403)
    assert BulkAction.objects.count() == 1
    if lacking == "view_job":
        return
    for name in ("run", "stop", "again"):
        assert step(client, bulk, name, **DONE).status_code == 403
    assert "<form" not in client.get(page(bulk)).text.replace('<form id="logout-form"', "")
    assert Job.objects.filter(state="dead").count() == 2


def test_a_look_at_a_set_changes_nothing(operator: Client) -> None:
    add_jobs(2, dead=True)
    bulk = freeze(operator)
    base = page(bulk).removesuffix("change/")
    assert [operator.get(f"{base}do/{name}/").status_code for name in ("run", "stop", "again")] == [405] * 3
    assert operator.get(EVERYTHING).status_code == 405
    assert operator.get(page(bulk)).status_code == 200
    assert BulkAction.objects.get().state == "frozen"
    for number in ("x", "00000000-0000-0000-0000-000000000000"):
        assert operator.get(f"/admin/pgqueue/bulkaction/{number}/change/").status_code == 404


def test_a_search_that_is_not_understood_freezes_nothing(operator: Client) -> None:
    add_jobs(2, dead=True)
    assert operator.post(EVERYTHING + "?q=free+text", {"verb": "requeue"}).status_code == 302
    assert not BulkAction.objects.exists()


def test_a_requeue_into_a_paused_queue_is_said_to_wait_there(operator: Client) -> None:
    QueueFactory(name="default", paused=True, pause_reason="provider is down")
    JobFactory(dead=True)
    said = plain(operator.get(page(freeze(operator))))
    assert "Queue “default” was paused" in said
