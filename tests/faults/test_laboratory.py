"""The laboratory: one steady load, one fault, one check for each scenario; and the table of all.

The short form runs some scenarios, `make test-faults` more, and `make test-faults FULL=1` all of them, in three rounds,
and writes the table to the documentation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo_project.postgres import Server
from demo_project.postgres import start as start_server

from .harness import PROJECT, SHORT
from .lab.running import FULL, Report, Scenario, run
from .lab.scenarios import SCENARIOS
from .lab.table import lines, totals, versions
from .lab.world import prepare

pytestmark = pytest.mark.faults

PAGE = PROJECT / "docs" / "how-we-test.md"
BEGIN, END = "<!-- The laboratory's table begins. -->", "<!-- The laboratory's table ends. -->"
ENOUGH_TRANSITIONS = 100_000


def chosen() -> list[Scenario]:
    if only := os.environ.get("PGQUEUE_LAB"):
        return [each for each in SCENARIOS if only in each.name]
    if SHORT:
        return [each for each in SCENARIOS if each.in_short]
    return [each for each in SCENARIOS if FULL or not each.full_only]


class Results:
    """What became of each scenario, in order."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.reports: list[Report] = []
        self.skipped: list[tuple[str, str]] = []

    def sort(self) -> None:
        """Put the lines into the order of the scenarios: the tests are shuffled."""
        order = [scenario.name for scenario in SCENARIOS]
        self.reports.sort(key=lambda report: order.index(report.scenario.name))

    def table(self) -> str:
        version = self.server.cluster.installation.version
        told = "\n".join(lines(self.reports, self.skipped))
        return f"{versions(version)}.\n{totals(self.reports)}\n\n{told}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start_server("lab", fsync=True)
    try:
        prepare(server)
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def results(server: Server) -> Iterator[Results]:
    """Print the table at the end; in the full form it goes into the documentation."""
    results = Results(server)
    yield results
    results.sort()
    print("", results.table(), sep="\n", flush=True)
    if FULL and not os.environ.get("PGQUEUE_LAB"):
        write_down(results.table())
        assert sum(report.findings.moves for report in results.reports) >= ENOUGH_TRANSITIONS


def write_down(table: str) -> None:
    page = PAGE.read_text(encoding="utf-8")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")


@pytest.mark.parametrize("scenario", chosen(), ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, results: Results, tmp_path: Path) -> None:
    if lacks := scenario.lacks():
        results.skipped.append((scenario.name, lacks))
        pytest.skip(lacks)
    report = run(scenario, results.server, tmp_path / "world")
    results.reports.append(report)
    print("", *lines([report])[2:], *report.broken(), sep="\n", flush=True)
    assert report.broken() == []
    assert not FULL or not report.is_late(), f"recovery of {report.recoveries} s, {report.bound():g} s promised"
