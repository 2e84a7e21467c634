"""How failures are told: how many jobs an error ended, and how many of them are dead now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.utils.translation import gettext as _

from ..protocol.surveying import STILL_DEAD_AT_MOST, Failures

WINDOWS = ("1h", "3h", "24h", "7d")
MANY_FAILURES = 10
"""So many jobs dead with one error within an hour are somebody's business. Those requeued since are not counted."""


def failing(failures: Sequence[Failures]) -> list[Failures]:
    """Return the errors that somebody has to look at: an alert ends when its jobs are dead no more."""
    return [row for row in failures if (row.still_dead or row.jobs)[0] >= MANY_FAILURES]


def failing_words(row: Failures) -> str:
    """Return an alert in words."""
    facts = {"jobs": f"{row.jobs[0]:,}", "still": _still(row, 0), "error": name_of(row)}
    text = _(
        "%(jobs)s jobs were given up within 1 hour with %(error)s, and %(still)s of them are still dead. Look at one. "
        "While it goes on, pause its queue."
    )
    return text % facts


def failed_today(failures: Sequence[Failures]) -> str:
    """Return how many jobs failed within 24 hours, and how many of them are dead now."""
    failed, still = f"{sum(row.jobs[2] for row in failures):,}", still_dead_today(failures)
    return (
        failed if still is None else _("%(failed)s, %(still)s still dead") % {"failed": failed, "still": _capped(still)}
    )


def still_dead_today(failures: Sequence[Failures]) -> int | None:
    """Return how many of the jobs that failed within 24 hours are dead now; None where they were not counted."""
    counted = [row.still_dead[2] for row in failures if row.still_dead is not None]
    return sum(counted) if len(counted) == len(failures) else None


def cells(row: Failures, urls: Sequence[str]) -> list[dict[str, Any]]:
    """Return an error's numbers by window. Only jobs that are still dead are in the list that a number leads to."""
    return [
        {
            "jobs": jobs,
            "still": _("%(still)s still dead") % {"still": _still(row, place)} if jobs and row.still_dead else "",
            "url": url if row.still_dead is None or row.still_dead[place] else "",
        }
        for place, (url, jobs) in enumerate(zip(urls, row.jobs, strict=True))
    ]


def name_of(row: Failures) -> str:
    """Return an error's class without its module."""
    return row.error.rpartition(".")[2] or _("no error class (lease lost)")


def _still(row: Failures, place: int) -> str:
    return "?" if row.still_dead is None else _capped(row.still_dead[place])


def _capped(jobs: int) -> str:
    return f"{jobs:,}" if jobs < STILL_DEAD_AT_MOST else f"≥ {STILL_DEAD_AT_MOST:,}"
