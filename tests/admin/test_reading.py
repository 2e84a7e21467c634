"""What a reader needs: the word that commands have beside the console's, whose error it was, and the way back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client, override_settings

from pgqueue.states import Outcome, State
from tests.admin.console import confirm_url, page
from tests.admin.test_overview import look
from tests.admin.test_pages import JOBS, plain
from tests.factories import (
    BulkActionFactory,
    JobFactory,
    LimitFactory,
    OperatorActionFactory,
    QueueFactory,
    WorkerFactory,
)

pytestmark = pytest.mark.django_db


def trail(answer: Any) -> list[tuple[str, str]]:
    """Return the links of a page's breadcrumbs, and last, without one, where it stands."""
    crumbs = re.search(r'<(ol|div) class="breadcrumbs">(.*?)</\1>', answer.text, re.S)
    assert crumbs is not None
    links = re.findall(r'<a href="([^"]*)">([^<]*)</a>', crumbs[2])
    last = re.sub(r"<[^>]+>|&rsaquo;|\s+", " ", crumbs[2].rpartition("</a>")[2]).strip()
    return [*links, ("", last)]


@pytest.mark.parametrize(
    ("language", "shown"),
    [
        ("en", {"Ready or scheduled": "pending", "Failed, gave up": "dead", "Held": "paused", "Running": ""}),
        ("zh-hans", {"失败,已放弃": "dead", "运行中": "running"}),
    ],
)
def test_the_filter_has_the_words_that_searches_have(language: str, shown: dict[str, str], operator: Client) -> None:
    JobFactory()
    with override_settings(LANGUAGE_CODE=language):
        text = operator.get(JOBS).text
    for words, code in shown.items():
        beside = f' <code class="pgqueue-code">{code}</code>' if code else ""
        assert f">{words}{beside}</a>" in text, words


@pytest.mark.parametrize("state", [State.DEAD, State.PAUSED, State.RETRYING, State.UNKNOWN])
def test_every_page_with_a_state_has_its_technical_word(state: State, operator: Client) -> None:
    row = JobFactory(**{state.value: True})
    code = f'<code class="pgqueue-code">{state.value}</code>'
    assert code in operator.get(JOBS).text.partition('id="result_list"')[2].partition("</table>")[0]
    assert code in operator.get(page(row)).text
    assert f"({state.value})" in plain(operator.get(confirm_url(row, "clone")))


def test_the_overview_names_the_state_that_a_number_counts(operator: Client) -> None:
    said = plain(look(operator))
    for words in ("Ready pending 0", "Held paused 0", "Waiting to retry retrying 0"):
        assert words in said


def test_a_task_is_its_function_first_and_its_module_after(operator: Client) -> None:
    JobFactory(task="shop.tasks.charge_card")
    JobFactory(task="plain")
    text = operator.get(JOBS).text
    assert '<span title="shop.tasks.charge_card">charge_<wbr>card</span>' in text
    assert '<span class="pgqueue-module">shop.<wbr>tasks</span>' in text
    assert '<span title="plain">plain</span></td>' in text


def test_the_stage_stands_with_the_state_where_an_effect_was_begun(operator: Client) -> None:
    JobFactory()
    assert "stage:" not in plain(operator.get(JOBS))
    JobFactory(unknown=True)
    assert "stage: outcome_unknown" in plain(operator.get(JOBS))


def test_a_success_says_whose_error_it_shows(operator: Client) -> None:
    row = JobFactory(succeeded=True, last_error_class="builtins.OSError", last_error="down")
    assert "Earlier attempt: OSError: down" in plain(operator.get(JOBS))
    said = plain(operator.get(page(row)))
    assert "Error of an earlier attempt" in said
    failed = JobFactory(dead=True)
    assert "Error of an earlier attempt" not in plain(operator.get(page(failed)))


def test_what_does_not_apply_is_folded_away(operator: Client) -> None:
    answer = operator.get(page(JobFactory(dead=True)))
    folded = answer.text.partition('<details class="pgqueue-refused">')[2].partition("</details>")[0]
    assert "/do/" not in folded
    refused = [offer for offer in answer.context["offers"] if offer.why_not]
    assert folded.count("<li>") == len(refused) > 10
    assert f"{len(refused)} actions that do not apply, and why" in plain(answer)


def test_the_audit_log_speaks_as_the_overview_does(operator: Client) -> None:
    OperatorActionFactory(verb="requeue", outcome="changed", state_found="dead")
    OperatorActionFactory(verb="requeue", outcome=Outcome.REFUSED_DUPLICATE)
    for url in ("/admin/pgqueue/overview/", "/admin/pgqueue/operatoraction/"):
        said = plain(operator.get(url))
        assert "Requeue job" in said
        assert "changed meanwhile, nothing done" in said
        assert "another job of its unique key is there, nothing done" in said
    assert "Requeue job requeue" in said
    assert "nothing done changed" in said


def test_the_way_back_is_told(operator: Client) -> None:
    row, queue, bulk = JobFactory(dead=True), QueueFactory(), BulkActionFactory()
    home, app = ("/admin/", "Home"), ("/admin/pgqueue/", "Job queue")
    jobs = ("/admin/pgqueue/job/", "Jobs")
    assert trail(operator.get(confirm_url(row, "requeue"))) == [
        *(home, app, jobs, (page(row), str(row)), ("", "Requeue job"))
    ]
    assert trail(operator.get(confirm_url(queue, "pause_queue")))[2] == ("/admin/pgqueue/queue/", "Queues")
    assert trail(operator.get(page(bulk)))[:3] == [home, app, ("/admin/pgqueue/bulkaction/", "Bulk actions")]
    assert trail(look(operator)) == [home, app, ("", "Overview")]


@pytest.mark.parametrize("name", ["job", "queue", "limit", "worker", "operatoraction", "reconcile", "bulkaction"])
def test_every_cell_of_a_list_knows_its_heading(name: str, operator: Client) -> None:
    JobFactory(unknown=True, queue='"><b>')
    for make in (QueueFactory, LimitFactory, WorkerFactory, OperatorActionFactory, BulkActionFactory):
        make()
    text = operator.get(f"/admin/pgqueue/{name}/").text.partition('id="result_list"')[2].partition("</table>")[0]
    head, body = text.split("<tbody>")
    headings = re.findall(r"<th scope=\"col\"[^>]*>([^<]+)</th>", head)
    row = body.partition("</tr>")[0]
    assert re.findall(r'<t[dh] data-label="([^"]*)"', row) == headings
    assert "<b>" not in body
