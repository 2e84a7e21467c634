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
    return [row for row in failures if row.still_dead[0] >= MANY_FAILURES]


def failing_words(row: Failures) -> str:
    """Return an alert in words."""
    facts = {"jobs": f"{row.jobs[0]:,}", "still": _capped(row.still_dead[0]), "error": name_of(row)}
    text = _(
        "%(jobs)s jobs were given up within 1 hour with %(error)s, and %(still)s of them are still dead. Look at one. "
        "While it goes on, pause its queue."
    )
    return text % facts


def failed_today(failures: Sequence[Failures]) -> str:
    """Return how many jobs failed within 24 hours, and how many of them are dead now."""
    failed, still = sum(row.jobs[2] for row in failures), sum(row.still_dead[2] for row in failures)
    return _("%(failed)s, %(still)s still dead") % {"failed": f"{failed:,}", "still": _capped(still)}


def cells(row: Failures, urls: Sequence[str]) -> list[dict[str, Any]]:
    """Return an error's numbers by window. Only jobs that are still dead are in the list that a number leads to."""
    return [
        {
            "jobs": jobs,
            "still": _("%(still)s still dead") % {"still": _capped(still)} if jobs else "",
            "url": url if still else "",
        }
        for url, jobs, still in zip(urls, row.jobs, row.still_dead, strict=True)
    ]


def name_of(row: Failures) -> str:
    """Return an error's class without its module."""
    return row.error.rpartition(".")[2] or _("no error class (lease lost)")


def _capped(jobs: int) -> str:
    return f"{jobs:,}" if jobs < STILL_DEAD_AT_MOST else f"≥ {STILL_DEAD_AT_MOST:,}"
