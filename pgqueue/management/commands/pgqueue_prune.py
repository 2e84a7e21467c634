"""`manage.py pgqueue_prune`: delete finished jobs whose retention is over; for a scheduler, such as cron."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError

from ... import conf
from ...actors import Actor
from ...retention import BATCH, sweep
from ..saying import QueueCommand, add_format, as_json, system_user

UNFINISHED = 3
"""Exit status when the time was over before every job was looked at."""


class Command(QueueCommand):
    """Arguments, then one call."""

    help = (
        "Delete finished jobs that are older than RETENTION_SECONDS and DEAD_RETENTION_SECONDS of PGQUEUE, with all "
        "that belongs to them. Exit status 3: the time was over first."
    )

    requires_system_checks = ()
    """A scheduler mails what a command writes: the report of the project's checks is for `check`."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--most-seconds", type=float, default=300.0, metavar="S", help="Begin no batch after this.")
        parser.add_argument("--batch", type=int, default=BATCH, metavar="N", help="Jobs looked at in one transaction.")
        parser.add_argument("--actor", help="Name for the audit log; by default that of the system user.")
        parser.add_argument("--reason", default="retention", help="Why, for the audit log.")
        add_format(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Sweep, and say what came of it."""
        settings = conf.current()
        if settings.retention_seconds is None and settings.dead_retention_seconds is None:
            raise CommandError(
                "Jobs are kept for ever: set PGQUEUE['RETENTION_SECONDS'] or ['DEAD_RETENTION_SECONDS']."
            )
        if options["batch"] < 1:
            raise CommandError("--batch must be 1 at least.")
        actor = Actor(id=None, name=options["actor"] or system_user())
        swept = sweep(
            actor=actor, reason=options["reason"], most_seconds=options["most_seconds"], batch=options["batch"]
        )
        if options["format"] == "json":
            self.stdout.write(as_json(asdict(swept)))
        else:
            self.stdout.write(f"{swept.deleted} of {swept.looked_at} jobs were deleted")
        if not swept.is_over:
            raise CommandError("The time was over: run it again.", returncode=UNFINISHED)
