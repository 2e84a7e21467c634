"""Runs one scenario: a steady load, a fault, calm, and the check; some rounds of it, and one line of a table."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from demo_project.postgres import Server

from ..harness import SHORT
from .checker import Findings, check, recovery_seconds
from .clock import LIBRARY, settable_clock
from .faults import Fault
from .pooler import PROGRAM
from .world import World

FULL = bool(os.environ.get("PGQUEUE_FULL")) and not SHORT
ROUNDS = int(os.environ.get("PGQUEUE_LAB_ROUNDS") or (3 if FULL else 1))
BEFORE_SECONDS = 2.0
GIVE_UP_SECONDS = 60.0
EXPECTED_STATUSES = {0, 75, -9, -15}
"""Drained; could not work any more; killed; and SIGTERM before its handler stands."""


@dataclass(frozen=True)
class Scenario:
    """One fault against a steady load."""

    name: str
    fault: Fault
    seconds: float = 6.0
    lease_seconds: float = 6.0
    workers: int = 2
    options: tuple[str, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    through_proxy: bool = False
    fences: bool = False
    """The provider checks fences: where a worker is frozen inside a call, nothing else is promised."""
    statuses: frozenset[int] = frozenset()
    """With what workers may end, beside the usual."""
    environments: tuple[dict[str, str], ...] = ()
    """What is special about the environment of each worker, in turn."""
    pool_mode: str | None = None
    """The mode of the PgBouncer between the workers and the server; without, there is none."""
    server_clock: bool = False
    """The clock of the server is set wrong; the throughput is then read from the ledger."""
    in_short: bool = False
    full_only: bool = False
    each_second: float = 12.0
    plain_each_second: float = 60.0
    rounds: int = ROUNDS
    recovers_within: float | None = None
    """Seconds; without, the lease and ten seconds."""

    def lacks(self) -> str | None:
        """Return what this machine does not have and the scenario needs."""
        if self.pool_mode and PROGRAM is None:
            return "no PgBouncer (make laboratory-tools)"
        if self.server_clock and LIBRARY is None:
            return "no libfaketime (make laboratory-tools)"
        return None


@dataclass
class Report:
    """One line of the table, and what it was made from."""

    scenario: Scenario
    findings: Findings = field(default_factory=Findings)
    struck: int = 0
    recoveries: list[float | None] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Processes that did not end."""
    statuses: Counter[int] = field(default_factory=Counter)

    def remarks(self) -> str:
        ended = [f"{count} x {status}" for status, count in sorted(self.statuses.items()) if status != 0]
        facts = [
            f"{self.findings.jobs} jobs",
            f"{self.findings.takeovers} takeovers" if self.findings.takeovers else "",
            f"{self.findings.waits_for_person} for a person" if self.findings.waits_for_person else "",
            f"statuses {', '.join(ended)}" if ended else "",
        ]
        return "; ".join(fact for fact in facts if fact)

    def recovery(self) -> str:
        known = [seconds for seconds in self.recoveries if seconds is not None]
        worst = f"{max(known):.1f}" if len(known) == len(self.recoveries) and known else "never"
        return f"{median(known):.1f} / {worst}" if known else "never"

    def bound(self) -> float:
        return self.scenario.recovers_within or self.scenario.lease_seconds + 10.0

    def is_late(self) -> bool:
        """Return whether the median recovery took longer than promised."""
        return median([GIVE_UP_SECONDS if each is None else each for each in self.recoveries]) > self.bound()

    def broken(self) -> list[str]:
        """Return every broken promise but that of time."""
        odd = [
            f"{count} processes ended with {status}"
            for status, count in self.statuses.items()
            if status not in EXPECTED_STATUSES | self.scenario.statuses
        ]
        never = ["the throughput never came back"] if None in self.recoveries else []
        return [*self.findings.all(), *self.left, *odd, *never]


def run(scenario: Scenario, server: Server, directory: Path) -> Report:
    """Run it to its end and return what was found."""
    report = Report(scenario)
    directory.mkdir(parents=True, exist_ok=True)
    world = World(server, directory, lease_seconds=scenario.lease_seconds, fences=scenario.fences)
    with ExitStack() as stack:
        stack.enter_context(world.proxy)
        try:
            if scenario.server_clock:
                world.clock = stack.enter_context(settable_clock(server))
            world.empty()
            _start(world, scenario)
            for _ in range(scenario.rounds):
                report.recoveries.append(_round(world, scenario, report))
            world.stop_load()
            world.until_rest(within_seconds=45 + 2 * scenario.lease_seconds)
            evidence = world.evidence()
            report.left = world.stop_workers(within_seconds=40)
            report.findings = check(evidence)
            report.statuses = world.statuses
        finally:
            world.end()
    return report


def _start(world: World, scenario: Scenario) -> None:
    settings = {"LEASE_SECONDS": scenario.lease_seconds, "CONCURRENCY": 8, **scenario.settings}
    if scenario.pool_mode is not None:
        world.pool(scenario.pool_mode)
    for number in range(scenario.workers):
        environments: Sequence[dict[str, str]] = scenario.environments or ({},)
        url = world.url(through_proxy=scenario.through_proxy)
        world.add_worker(*scenario.options, settings=settings, url=url, **environments[number % len(environments)])
    world.begin(each_second=scenario.each_second, plain_each_second=scenario.plain_each_second)
    time.sleep(2.0)  # The first jobs pay for imports and plans.


def _round(world: World, scenario: Scenario, report: Report) -> float | None:
    """Let it be calm, strike, and wait until the throughput is back; return how long that took."""
    calm_since = time.time()
    time.sleep(BEFORE_SECONDS)
    fault_since = time.time()
    report.struck += scenario.fault(world, scenario.seconds)
    fault_until = time.time()
    while True:
        time.sleep(2.0)
        until = time.time()
        recovered = recovery_seconds(
            world.done_since(calm_since, by_ledger=scenario.server_clock),
            offered=scenario.each_second + scenario.plain_each_second,
            calm_since=calm_since,
            fault_since=fault_since,
            fault_until=fault_until,
            until=until,
        )
        if recovered is not None or until > fault_until + GIVE_UP_SECONDS:
            return recovered
