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
from .lab.table import lines, totals
from .lab.world import prepare

pytestmark = pytest.mark.faults

PAGE = PROJECT / "docs" / "laboratory.txt"
ENOUGH_TRANSITIONS = 100_000


def chosen() -> list[Scenario]:
    if os.environ.get("PGQUEUE_LAB"):
        return [each for each in SCENARIOS if os.environ["PGQUEUE_LAB"] in each.name]
    if SHORT:
        return [each for each in SCENARIOS if each.in_short]
    return [each for each in SCENARIOS if FULL or not each.full_only]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = start_server("lab", fsync=True)
    try:
        prepare(server)
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def reports(server: Server) -> Iterator[list[Report]]:
    """Collect one report for each scenario, and print the table at the end."""
    found: list[Report] = []
    yield found
    print(*lines(found), totals(found), sep="\n")


@pytest.mark.parametrize("scenario", chosen(), ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario, server: Server, reports: list[Report], tmp_path: Path) -> None:
    report = run(scenario, server, tmp_path / "world")
    reports.append(report)
    print(*lines([report])[2:], *report.broken(), sep="\n")
    assert report.broken() == []
