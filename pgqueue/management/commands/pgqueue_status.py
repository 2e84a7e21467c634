"""`manage.py pgqueue_status`: where every unfinished job stands; an exit status for monitoring."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from ...protocol.blocking import Blocker, list_blockers
from ...protocol.counting import COUNTED_AT_MOST, Standing, count_standing
from ...protocol.refusing import ADVICE, why_read_only
from ..saying import QueueCommand, add_format, chosen_alias

ALARM = 3
"""Exit status when something waits longer than it may."""
WORDS = {
    "due": "due now",
    "scheduled": "due later",
    "queue_paused": "in a paused queue",
    "jobs_paused": "of a paused tenant, task or resource",
    "task_unknown": "that no live worker can run",
    "queue_unserved": "of a queue from which no live worker that knows their task takes",
    "key_busy": "behind a running job of their shard key",
    "key_blocked": "behind an unfinished job of their shard key, whose order is strict",
    "limit_reached": "of a queue, tenant, task or resource whose limit is reached",
    "rate_spent": "of a queue, tenant, task or resource whose rate is used up for now",
    "runs_alone": "due now, after a lost lease: each runs alone",
    "leased": "running",
    "lease_expired": "running, lease expired: a worker was lost",
    "held": "held by an operator",
    "probed": "outcome unknown, a probe will ask",
    "needs_a_person": "outcome unknown, waiting for a person",
}


class Command(QueueCommand):
    """Arguments, then one call."""

    help = "Show where unfinished jobs stand. Exit status 3: something waits longer than it may."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add_format(parser)
        parser.add_argument("--max-due-seconds", type=float, metavar="S", help="Exit 3 if a due job has waited longer.")
        parser.add_argument(
            "--max-expired-seconds", type=float, metavar="S", help="Exit 3 if a lease expired longer ago than this."
        )
        parser.add_argument("--database", help="Alias of the database the jobs are in.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Print one line per standing; fail when a limit is passed."""
        alias, is_json = chosen_alias(options), options["format"] == "json"
        if (why := why_read_only(alias)) is not None:
            self.stderr.write(self.style.WARNING(f"{why} {ADVICE}"))
        standings = count_standing(alias)
        for standing in standings:
            self.stdout.write(json.dumps(asdict(standing)) if is_json else _told(standing))
        if not standings and not is_json:
            self.stdout.write("No unfinished jobs.")
        if not is_json and any(standing.name == "lease_expired" for standing in standings):
            for blocker in list_blockers(alias):
                self.stdout.write(_blocked(blocker))
        # Without a live worker every waiting job is of an unknown task: that must not silence the alarm.
        due = dict.fromkeys(("due", "runs_alone", "task_unknown", "queue_unserved"), options["max_due_seconds"])
        limits = {
            **due,
            "lease_expired": options["max_expired_seconds"],
        }
        late = [standing for standing in standings if _is_late(standing, limits.get(standing.name))]
        if late:
            raise CommandError(
                "; ".join(_passed(standing, limits[standing.name]) for standing in late), returncode=ALARM
            )


def _is_late(standing: Standing, limit_seconds: float | None) -> bool:
    return limit_seconds is not None and (standing.overdue_seconds or 0) > limit_seconds


def _passed(standing: Standing, limit_seconds: float | None) -> str:
    """The line above says how many jobs there are; this says which bound was passed, and by how much."""
    seconds = f"the longest for {standing.overdue_seconds or 0:.0f} s, at most {limit_seconds:g} s are allowed"
    return f"{WORDS[standing.name]}: {seconds}"


def _blocked(blocker: Blocker) -> str:
    state = blocker.state or "state not visible to this role"
    return (
        f"Job {blocker.job_id} cannot be taken over: session {blocker.pid} of role {blocker.role} ({state}) holds its "
        f"row. End that session: SELECT pg_terminate_backend({blocker.pid})."
    )


def _told(standing: Standing) -> str:
    jobs = f"{standing.jobs}" if standing.jobs < COUNTED_AT_MOST else f">= {standing.jobs}"
    overdue = "" if standing.overdue_seconds is None else f", the longest for {standing.overdue_seconds:.0f} s"
    return f"{jobs:>8} {WORDS[standing.name]}{overdue}"
