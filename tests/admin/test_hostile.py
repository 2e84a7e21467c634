"""Whatever a URL or a form carries: an empty list with a sentence, or a word beside the field, and never an error."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from django.urls import reverse

from pgqueue.admin.queries import LONGEST_VALUE
from pgqueue.json_input import InputTooLargeError, read_json
from pgqueue.models import Effect, Job
from tests.admin.console import confirm_url, filled, page, token_for
from tests.admin.test_pages import JOBS, numbers, plain
from tests.factories import (
    ApprovalRequestFactory,
    BulkActionFactory,
    EffectFactory,
    JobFactory,
    LimitFactory,
    OperatorActionFactory,
    QueueFactory,
    WorkerFactory,
)

pytestmark = pytest.mark.django_db
LISTS = ("overview", "queue", "limit", "job", "reconcile", "worker", "bulkaction", "approvalrequest", "operatoraction")
NAMES = (
    *("q", "state", "queue", "kind", "show", "target_kind", "target_id", "sort", "after", "before", "p", "o", "e"),
    *("all", "range", "_changelist_filters", "_popup", "_to_field", "_facets", "seen", "outcome", "id", "pk__in", "x"),
)
DEEP = "[" * 1_900
HOSTILE = {
    "nul": "%00",
    "nul within": "a%00b",
    "half a pair": "%ED%A0%80",
    "no text": "%FF%FE",
    "line ends": "a%0D%0ASet-Cookie:+x%3D1",
    "a megabyte": "a" * 2**20,
    "deep": DEEP,
    "a deep argument": quote(f"args.a:{DEEP}"),
    "a deep path": quote("args." + "a." * 900 + "a:1"),
    "many terms": "+".join(["state:dead"] * 150),
    "a long number": "9" * 3_900,
    "a quote": "%22",
    "a percent sign": "%25s%25(x)s",
    "nothing": "",
    "a list": "1,2,x",
    "an infinity": "Infinity",
}


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("name", LISTS)
def test_no_parameter_of_a_list_breaks_it(name: str, hostile: str, operator: Client) -> None:
    JobFactory(dead=True)
    url = reverse(f"admin:pgqueue_{name}_changelist")
    for param in NAMES:
        answer = operator.get(f"{url}?{param}={HOSTILE[hostile]}")
        # Django itself refuses what is no column that may be asked for, and turns a page that there is not away.
        assert answer.status_code in (200, 302, 400), (param, answer.status_code)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_parameter_of_a_page_breaks_it(hostile: str, operator: Client) -> None:
    rows = [JobFactory(unknown=True), QueueFactory(), LimitFactory(), WorkerFactory(), OperatorActionFactory()]
    EffectFactory(job_id=rows[0].pk, fence=rows[0].fence, past=True)
    urls = [page(row) for row in (*rows, BulkActionFactory(), ApprovalRequestFactory())]
    urls += [confirm_url(rows[0], "happened"), confirm_url(rows[1], "pause_queue"), page(rows[0], "history")]
    urls += ["/admin/pgqueue/overview/overview.json"]
    for url in urls:
        for param in NAMES:
            answer = operator.get(f"{url}?{param}={HOSTILE[hostile]}")
            assert answer.status_code in (200, 302, 400), (url, param, answer.status_code)


@pytest.mark.parametrize("hostile", [name for name, text in HOSTILE.items() if text and len(text) < 4_000])
@pytest.mark.parametrize("name", ["queue", "limit", "job", "worker", "bulkaction", "approvalrequest", "reconcile"])
def test_no_name_in_a_path_breaks_a_page(name: str, hostile: str, operator: Client) -> None:
    url = reverse(f"admin:pgqueue_{name}_changelist")
    for tail in ("change/", "history/", "delete/", "do/cancel/", "do/pause_queue/", "do/set_limit/", ""):
        answer = operator.get(f"{url}{quote(HOSTILE[hostile], safe='%')}/{tail}")
        assert answer.status_code < 500, (tail, answer.status_code)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("?queue=%00", "has characters that no row can have"),
        (f"?queue={'a' * 2**20}", f"longer than {LONGEST_VALUE} characters"),
        ("?%00=1", "has characters that no row can have"),
        (f"?q={'a' * 3_000}", "The search is longer than 2000 characters."),
        (f"?q={'+'.join(['state:dead'] * 150)}", "The search has more than 20 terms."),
        (f"?q=args.{'a.' * 100}a:1", "The path of the argument has more than 20 names."),
    ],
)
def test_what_no_row_can_have_finds_nothing_and_says_so(asked: str, says: str, operator: Client) -> None:
    row = JobFactory(dead=True)
    answer = operator.get(JOBS + asked)
    assert answer.status_code == 200
    assert (numbers(answer), says in plain(answer), "No row is shown." in plain(answer)) == ([], True, True)
    # Nor does anything act on everything instead.
    frozen = operator.post(f"{JOBS}everything/{asked}", {"verb": "requeue"})
    exported = operator.post(f"{JOBS}export/{asked}", {"format": "csv"})
    assert {frozen.status_code, exported.status_code} == {302}
    assert Job.objects.get().version == row.version


@pytest.mark.parametrize("field", ["new_args", "new_kwargs"])
def test_deep_arguments_for_a_clone_are_refused_in_words(field: str, operator: Client) -> None:
    row = JobFactory(dead=True)
    typed = "[" * 5_000 + "]" * 5_000
    answer = operator.post(confirm_url(row, "clone"), filled(token_for(operator, row, "clone"), row, **{field: typed}))
    assert answer.status_code == 422
    assert "This JSON is nested deeper than 100 levels." in plain(answer)


@pytest.mark.parametrize("typed", ["[" * 1_500, "NaN", '"\\ud800"', '"\\u0000"', "9" * 1_900])
def test_a_result_that_cannot_be_stored_is_refused_in_words(typed: str, operator: Client) -> None:
    row = JobFactory(unknown=True)
    EffectFactory(job_id=row.pk, fence=row.fence, past=True, name="sms")
    form = filled(token_for(operator, row, "happened"), row, result=typed)
    answer = operator.post(confirm_url(row, "happened"), form)
    assert answer.status_code in (422, 303)
    assert (answer.status_code == 303) == typed.isdecimal()


def test_a_result_is_stored_as_what_it_means(operator: Client) -> None:
    row = JobFactory(unknown=True)
    EffectFactory(job_id=row.pk, fence=row.fence, past=True, name="sms")
    form = filled(token_for(operator, row, "happened"), row, result='{"id": "m_77"}')
    assert operator.post(confirm_url(row, "happened"), form).status_code == 303
    assert Effect.objects.get().result == {"id": "m_77"}


@pytest.mark.parametrize("text", ["[" * 103 + "]" * 103, '{"a":' * 103 + "1" + "}" * 103, "[" * 100_000])
def test_json_that_is_too_deep_is_not_parsed(text: str) -> None:
    with pytest.raises(InputTooLargeError, match="nested deeper than 100 levels"):
        read_json(text)


@pytest.mark.parametrize("value", ["[" * 300, '"[\\"[' * 300, {"a": ["]]", "[[["]}, [[[[]]], {"b": {}}]])
def test_brackets_within_texts_are_no_depth(value: Any) -> None:
    assert read_json(json.dumps(value)) == value


@pytest.mark.parametrize("text", ["", "[", "NaN", "-Infinity", '"', "\\", "9" * 5_000])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_json(text)
