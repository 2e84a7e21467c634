"""Every case from the field has a test that names it, or one sentence here that says why not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.safestring import mark_safe

from pgqueue.models import JobPayload
from tests.factories import JobFactory

TESTS = Path(__file__).resolve().parent

CASES = {
    "A": (1, 2, 4, 5, 6, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20),
    "B": (2, 4, 5, 7, 8, 10, 11, 13, 14, 15, 16, 17, 19, 20, 22, 23, 25, 26),
    "C": (2, 5, 6, 8, 9, 11, 12, 14, 15, 17, 18, 20, 21, 23, 24, 26, 27),
    "D": (1, 2, 3, 6, 8, 9, 11, 12),
    "E": (2, 3, 5, 6, 7, 8, 9, 11, 12, 14, 15, 17, 18),
    "G": (1, 3, 4, 6, 7, 9, 10),
    "H": (1, 2, 3, 5, 6, 8, 9, 11, 12, 14, 15, 17),
    "I": (1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 19, 21, 22, 24),
    "J": (1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 19, 21),
    "K": (1, 4, 6, 7, 9, 10, 12, 13, 15),
    "M": (1, 3, 4, 6, 9, 10, 12, 13),
}
IDS = [f"{theme}{number:02}" for theme, numbers in CASES.items() for number in numbers]

WITHOUT_A_TEST: dict[str, str] = {
    "C12": "A failover needs a primary and a standby: it comes with the tests of high availability.",
    "C26": "Migrations take no lock of a session (see C18), and two at once through a pooler come with its tests.",
    "I06": "Nothing has been released, so there is no schema to migrate from while workers run.",
    "I07": "The one schema there is rewrites no table; the next one is tested against it.",
    "I10": "There is no older schema and no older code yet.",
    "I24": "No migration touches data.",
    "E18": "There are no batches of jobs with a callback of their own.",
}


def _named_cases() -> Iterator[str]:
    """Yield the ids that the tests name: by `pytest.mark.case(...)`, or as a field case in a docstring."""
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(), str(path))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "case":
                yield from (word.value for word in node.args if isinstance(word, ast.Constant))
            if isinstance(node, ast.FunctionDef | ast.Module):
                for told in re.findall(
                    r"[Ff]ield cases? (\w\d\d(?:(?:,| and) \w\d\d)*)", ast.get_docstring(node) or ""
                ):
                    yield from re.findall(r"\w\d\d", told)


NAMED = set(_named_cases())


@pytest.mark.parametrize("id", IDS)
def test_a_case_has_a_test_or_a_reason(id: str) -> None:
    assert id in NAMED or id in WITHOUT_A_TEST


def test_a_reason_is_a_sentence_and_stands_for_a_case_without_a_test() -> None:
    for id, reason in WITHOUT_A_TEST.items():
        assert id in IDS
        assert id not in NAMED
        assert reason[0].isupper()
        assert reason.endswith(".")


def test_nine_cases_in_ten_have_a_test() -> None:
    tested = [id for id in IDS if id in NAMED]
    print(f"field cases: {len(tested)} of {len(IDS)} have a test; without: {', '.join(sorted(WITHOUT_A_TEST))}")
    assert len(tested) >= 0.9 * len(IDS)


@pytest.mark.case("H15")
@pytest.mark.django_db
def test_what_people_wrote_is_shown_as_text_in_the_console(admin_client: Client) -> None:
    script = mark_safe("<script>alert(1)</script>")
    job = JobFactory(
        dead=True, task=script, queue=script, tenant=script, operation_key=script, last_error=script, lane=1
    )
    JobPayload.objects.create(job_id=job.id, args=[script], kwargs={script: script})
    pages = [
        admin_client.get(reverse("admin:pgqueue_job_changelist")),
        admin_client.get(reverse("admin:pgqueue_job_change", args=[job.id])),
    ]
    for page in pages:
        assert page.status_code == 200
        assert "<script>alert" not in page.content.decode()
        assert "&lt;script&gt;alert" in page.content.decode()
