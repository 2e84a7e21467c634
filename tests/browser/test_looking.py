"""Looking: every screen, in both themes, small and large, under the policy, read aloud and in another clock."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Person
from tests.browser.seeding import screens, seed
from tests.factories import JobFactory

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]
Bring = Callable[..., Person]
SHORT = bool(os.environ.get("PGQUEUE_SHORT"))
THEMES = ["light"] if SHORT else ["light", "dark"]
INLINE = re.compile(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\sstyle=|\son[a-z]+=|javascript:")


@pytest.mark.acceptance("A50")
def test_no_screen_breaks_the_policy(person: Bring) -> None:
    rows = seed()
    who = person()
    for name, path in screens(rows).items():
        assert who.go(path).status == 200, name
        assert not INLINE.findall(who.page.content().replace('style="display: none;"', "")), name
    assert who.complaints == []


@pytest.mark.acceptance("A53", "A55")
@pytest.mark.parametrize("theme", THEMES)
def test_no_screen_has_a_serious_fault_of_access(theme: str, person: Bring) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    rows = seed()
    who = person(color_scheme=theme)
    faults: list[Any] = []
    for name, path in screens(rows).items():
        who.go(path)
        found = axe.run(who.page, context="#content").response["violations"]
        bad = [fault for fault in found if fault["impact"] in ("serious", "critical")]
        faults += [(name, fault["id"], [node["html"][:120] for node in fault["nodes"][:3]]) for fault in bad]
    assert faults == []


@pytest.mark.acceptance("A58")
@pytest.mark.parametrize("width", [360, 320])
def test_no_screen_scrolls_sideways(width: int, person: Bring) -> None:
    rows = seed()
    who = person(viewport={"width": width, "height": 740})
    wide = {}
    for name, path in screens(rows).items():
        who.go(path)
        scrolled = who.page.evaluate("document.documentElement.scrollWidth")
        if scrolled > width:
            wide[name] = scrolled
    assert wide == {}


@pytest.mark.acceptance("A52", "A54")
def test_states_are_words_and_signs_and_tables_have_headers(person: Bring) -> None:
    rows = seed()
    who = person()
    who.go("/admin/pgqueue/job/")
    shown = who.page.locator("#result_list .pgqueue-state").all_inner_texts()
    words = {" ".join(text.split()) for text in shown}
    assert words == {
        "✕ Failed, gave up",
        "▶ Running",
        "? Outcome unknown",
        "○ Ready",
        "◷ Scheduled",
        "↻ Waiting to retry",
        "‖ Held",
        "✓ Succeeded",
        "⊘ Cancelled",
    }
    for name, path in screens(rows).items():
        who.go(path)
        bare = "document.querySelectorAll('#content table:not(#result_list) th:not([scope])').length"
        assert who.page.evaluate(bare) == 0, name
        without = "[...document.querySelectorAll('#content table')].filter(t => !t.caption).length"
        assert who.page.evaluate(without) == 0, name
    who.go("/admin/pgqueue/overview/")
    assert who.page.locator("[role=status][aria-live=polite]").count() == 1


@pytest.mark.acceptance("A9", "A57")
def test_the_browsers_clock_decides_nothing(person: Bring) -> None:
    job = JobFactory(running=True)
    spans = []
    for hour in (None, datetime(2020, 1, 1, 1, tzinfo=UTC)):
        who = person()
        if hour is not None:
            who.page.clock.set_fixed_time(hour)
        who.go(f"/admin/pgqueue/job/{job.pk}/change/")
        spans.append(int(re.findall(r"worker -101, (\d+) s left", who.text())[0]))
    assert 0 <= spans[0] - spans[1] <= 30
    assert "Times: UTC (UTC+0000)" in who.text()
    titles = who.page.evaluate("[...document.querySelectorAll('time')].map(t => [t.title, t.dateTime])")
    assert titles
    assert all(title.endswith(" UTC") and iso.endswith("+00:00") for title, iso in titles)


@pytest.mark.acceptance("A10", "A12")
def test_a_search_is_an_address_that_can_be_shared(person: Bring) -> None:
    rows = seed()
    who, other = person(), person("op2")
    who.go("/admin/pgqueue/job/")
    who.page.fill("#searchbar", "args.order:5531 state:dead")
    who.page.press("#searchbar", "Enter")
    who.page.wait_for_url("**q=*")
    found = who.page.locator("#result_list tbody th a").all_inner_texts()
    assert found == [str(rows["dead"].pk)]
    other.page.goto(who.page.url)
    assert other.page.locator("#result_list tbody th a").all_inner_texts() == found
    who.go("/admin/pgqueue/job/?q=insufficient+funds")
    assert "free text is not searched" in who.text()


@pytest.mark.acceptance("A1", "A46")
def test_every_number_of_the_overview_leads_to_its_rows(person: Bring) -> None:
    seed()
    who = person()
    who.go("/admin/pgqueue/overview/")
    links = who.page.evaluate("[...document.querySelectorAll('.pgqueue-numbers dd a')].map(a => [a.href, a.innerText])")
    assert len(links) >= 7
    for href, number in links:
        who.page.goto(href)
        rows = who.page.locator("#result_list tbody tr").count()
        if number.isdecimal() and "ended" not in href:
            assert rows == int(number), href


@pytest.mark.acceptance("A3", "A6", "A7")
def test_the_silent_worker_and_the_line_of_no_return_are_shown(person: Bring) -> None:
    rows = seed()
    who = person()
    who.go("/admin/pgqueue/overview/")
    assert re.search(r"on app-2 has been silent for .* Leases it holds: 1; the first", who.text())
    who.go(f"/admin/pgqueue/job/{rows['unknown'].pk}/change/")
    assert "line of no return charge: may be sent from here on" in who.text().lower().replace("LINE", "line")
    who.go(f"/admin/pgqueue/job/{rows['dead'].pk}/change/")
    assert [f"Attempt {number}: failed" in who.text() for number in (1, 2, 3)] == [True] * 3


@pytest.mark.acceptance("A4")
def test_a_chart_has_its_numbers_as_a_table(person: Bring) -> None:
    seed()
    who = person()
    who.go("/admin/pgqueue/overview/")
    title = who.page.text_content("#pgqueue-flow-title")
    total = int(re.findall(r"(\d+) jobs ended", title)[0])
    who.page.locator("summary:text('Show as table')").first.click()
    cells = who.page.locator("details[open] td").all_inner_texts()
    assert sum(map(int, cells)) == total > 0


@pytest.mark.acceptance("A47")
def test_refresh_is_off_until_asked_for_and_lists_have_none(person: Bring) -> None:
    seed()
    who = person()
    who.go("/admin/pgqueue/overview/")
    assert not who.page.locator(".pgqueue-refresh input").is_checked()
    for path in ("/admin/pgqueue/job/", "/admin/pgqueue/worker/"):
        who.go(path)
        assert who.page.locator("[data-refresh]").count() == 0


@pytest.mark.acceptance("A11")
@pytest.mark.parametrize(
    ("path", "says"),
    [("job/", "enqueue() in your code"), ("worker/", "manage.py runworker"), ("bulkaction/", "Tick rows")],
)
def test_an_empty_list_says_what_to_do(path: str, says: str, person: Bring) -> None:
    who = person()
    who.go(f"/admin/pgqueue/{path}")
    assert says in who.text()


@pytest.mark.acceptance("A55")
def test_forced_colours_leave_everything_readable(person: Bring) -> None:
    seed()
    who = person(forced_colors="active")
    who.go("/admin/pgqueue/job/")
    assert who.page.locator(".pgqueue-state").first.is_visible()


@pytest.mark.skipif(not os.environ.get("PGQUEUE_SCREENSHOTS"), reason="make screenshots")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_screenshots(theme: str, person: Bring) -> None:
    rows: dict[str, Any] = seed()
    directory = Path(os.environ["PGQUEUE_SCREENSHOTS"])
    directory.mkdir(parents=True, exist_ok=True)
    who = person(color_scheme=theme, viewport={"width": 1280, "height": 860})
    for name, path in screens(rows).items():
        who.go(path)
        who.page.screenshot(path=directory / f"{name}-{theme}.png", full_page=name != "jobs")


ASKEW = """[...document.querySelectorAll('#content table')].flatMap(table => {
    const inside = cell => cell.getBoundingClientRect().left + parseFloat(getComputedStyle(cell).paddingLeft);
    const [heads, cells] = ['thead tr', 'tbody tr'].map(row => [...(table.querySelector(row)?.children ?? [])]);
    return heads.length !== cells.length ? [] : heads
        .filter(head => !head.matches('.action-checkbox-column') && head.offsetParent)
        .filter(head => Math.abs(inside(head) - inside(cells[heads.indexOf(head)])) > 1)
        .map(head => head.innerText);
})"""
"""The headings that do not stand over their cells."""


@pytest.mark.parametrize("width", [360, 1280] if SHORT else [360, 900, 1201, 1279, 1280, 1920])
def test_lists_fit_and_headings_stand_over_their_cells(width: int, person: Bring) -> None:
    rows = seed()
    who = person(viewport={"width": width, "height": 900})
    cut, askew = {}, {}
    for name, path in screens(rows).items():
        who.go(path)
        who.page.evaluate("document.querySelectorAll('#content details').forEach(each => { each.open = true; })")
        askew[name] = who.page.evaluate(ASKEW)
        wide = "[...document.querySelectorAll('.results')].map(r => r.scrollWidth - r.clientWidth).filter(by => by > 0)"
        cut[name] = who.page.evaluate(wide)
    assert {name: found for name, found in askew.items() if found} == {}
    # Smaller screens show lists as cards, and scroll a table that is none within itself.
    assert width <= 1200 or {name: found for name, found in cut.items() if found} == {}


def test_no_word_of_a_task_is_broken_by_the_edge_of_its_column(person: Bring) -> None:
    seed()
    who = person(viewport={"width": 1280, "height": 900})
    who.go("/admin/pgqueue/job/")
    # Each word is one box, and a broken one two.
    broken = """[...document.querySelectorAll('#result_list .field-short_task span')].flatMap(span =>
        [...span.childNodes].filter(node => node.nodeType === 3).filter(node => {
            const range = document.createRange();
            range.selectNodeContents(node);
            return range.getClientRects().length > 1;
        }).map(node => node.data))"""
    assert who.page.locator("#result_list .field-short_task").count() > 5
    assert who.page.evaluate(broken) == []
