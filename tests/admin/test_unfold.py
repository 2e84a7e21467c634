"""What the console does for a theme that resets all styles and shows nothing above its titles."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.apps import apps
from django.template.loader import render_to_string
from django.test import Client
from django.utils.safestring import mark_safe

from pgqueue.models import Job
from tests.admin.console import confirm_url, page
from tests.admin.test_pages import JOBS
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db


def test_under_unfold_the_frame_and_the_title_stand_in_the_content(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = JobFactory(dead=True)
    urls = [JOBS, page(row), confirm_url(row, "requeue"), "/admin/pgqueue/overview/"]
    for url in urls:
        text = operator.get(url).text
        assert "pgqueue-title" not in text
        assert "unfold.css" not in text
    monkeypatch.setattr(apps, "is_installed", lambda name: name == "unfold")
    for url in urls:
        text = operator.get(url).text
        assert text.index('class="pgqueue-title"') > text.index('id="content"')
        assert "pgqueue/unfold.css" in text
    assert "Failed, gave up (dead)</a>" in operator.get(JOBS).text


def test_the_script_of_unfold_and_the_styles_of_grappelli_find_the_list(operator: Client) -> None:
    """Unfold's script looks for `.result-list`; Grappelli's styles are those of classes that Django does not have."""
    JobFactory()
    text = operator.get(JOBS).text
    assert '<table id="result_list" class="result-list grp-table">' in text
    assert '<tr class="grp-row">' in text


def test_under_grappelli_the_breadcrumbs_are_a_list_of_its_own(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = JobFactory(dead=True)
    urls = ["/admin/pgqueue/overview/", confirm_url(row, "requeue")]
    assert not any("grp-horizontal-list" in operator.get(url).text for url in urls)
    monkeypatch.setattr(apps, "is_installed", lambda name: name == "grappelli")
    for url in urls:
        text = operator.get(url).text
        assert '<ul class="grp-horizontal-list">\n<li><a href="/admin/">' in text
        assert 'class="breadcrumbs"' not in text


def test_the_class_of_a_column_is_a_class_whatever_the_theme_calls_it() -> None:
    """Django gives the attribute, Unfold its value."""
    headers = [{"text": "a", "class_attrib": mark_safe(' class="column-a"')}, {"text": "b", "class_attrib": "column-b"}]
    context = {
        "results": [["<td>1</td>", "<td>2</td>"]],
        "result_headers": headers,
        "cl": SimpleNamespace(opts=Job._meta),
    }
    text = render_to_string("admin/pgqueue/change_list_results.html", context)
    assert '<th scope="col" class="column-a">A</th><th scope="col" class="column-b">B</th>' in text
