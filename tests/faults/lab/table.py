"""The table of a run, as text and for the documentation."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime

import django
import psycopg

from pgqueue.version import __version__

from .running import Report

HEAD = ("scenario", "load", "faults", "recovery p50 / max", "lost", "doubled", "stuck", "illegal", "remarks")


def lines(reports: Sequence[Report], skipped: Sequence[tuple[str, str]] = ()) -> list[str]:
    """Return the table in Markdown, one line for each scenario."""
    rows = [HEAD, tuple("---" for _ in HEAD), *map(_row, reports)]
    rows += [(name, *("-" for _ in HEAD[1:-1]), f"SKIPPED: {reason}") for name, reason in skipped]
    return ["| " + " | ".join(row) + " |" for row in rows]


def _row(report: Report) -> tuple[str, ...]:
    scenario, found = report.scenario, report.findings
    rate = scenario.each_second + scenario.plain_each_second
    load = f"{rate:g}/s, {scenario.workers} workers, lease {scenario.lease_seconds:g}"
    counts = (found.lost, found.doubled, found.stuck, [*found.illegal, *found.went_back])
    late = "late; " if report.is_late() else ""
    return (
        scenario.name,
        load,
        str(report.struck),
        report.recovery(),
        *(str(len(each)) for each in counts),
        late + report.remarks(),
    )


def totals(reports: Sequence[Report]) -> str:
    moves = sum(report.findings.moves for report in reports)
    illegal = sum(len(report.findings.illegal) + len(report.findings.went_back) for report in reports)
    jobs = sum(report.findings.jobs for report in reports)
    return f"{jobs:,} jobs, {moves:,} recorded transitions, {illegal} of them illegal."


def versions(server_version: str) -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    parts = [
        f"{datetime.now(UTC):%Y-%m-%d}",
        f"pgqueue {__version__}" + (f" ({commit})" if commit else ""),
        f"PostgreSQL {server_version}",
        f"Python {platform.python_version()}",
        f"Django {django.get_version()}",
        f"psycopg {psycopg.__version__}",
    ]
    return ", ".join(parts)
