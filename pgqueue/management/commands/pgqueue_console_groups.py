"""Make the groups of the console, or bring them up to date."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.management.base import CommandError, CommandParser
from django.db import router, transaction

from ...models import Job
from ...verbs import VERBS
from ..saying import QueueCommand, add_format, as_json

VIEWS = (
    "view_overview",
    "view_queue",
    "view_limit",
    "view_job",
    "view_reconcile",
    "view_worker",
    "view_bulkaction",
    "view_approvalrequest",
    "view_operatoraction",
)


def _verbs_up_to(level: int) -> tuple[str, ...]:
    """Return the permissions of the verbs up to a level; one that also serves a higher verb belongs to that."""
    highest: dict[str, int] = {}
    for verb in VERBS.values():
        highest[verb.permission] = max(verb.level, highest.get(verb.permission, 0))
    return tuple(sorted(name for name, its in highest.items() if its <= level))


def groups() -> dict[str, tuple[str, ...]]:
    """Return the codenames of each group."""
    return {
        "Job queue: viewer": VIEWS,
        "Job queue: triage": (*VIEWS, "view_job_errors", *_verbs_up_to(1)),
        "Job queue: operator": (*VIEWS, "view_job_errors", *_verbs_up_to(2)),
        "Job queue: senior": (*VIEWS, *_verbs_up_to(3), "bulk_job", "view_job_errors", "view_job_args", "export_job"),
        "Job queue: auditor": (*VIEWS, "view_job_errors", "view_job_args", "export_job"),
    }


class Command(QueueCommand):
    """Only permissions of the queue are touched; what a group may do elsewhere stays."""

    help = "Make the groups viewer, triage, operator, senior and auditor of the console, or bring them up to date."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add_format(parser)

    def handle(self, **options: Any) -> None:
        """Set each group's permissions."""
        if not apps.is_installed("django.contrib.auth"):
            raise CommandError("There are no groups here: django.contrib.auth is not in INSTALLED_APPS.")
        with transaction.atomic(using=router.db_for_write(apps.get_model("auth", "Group"))):
            for name, codenames in groups().items():
                self._set(name, codenames, options["format"])

    def _set(self, name: str, codenames: tuple[str, ...], format: str) -> None:
        group, _made = apps.get_model("auth", "Group").objects.get_or_create(name=name)
        ours = apps.get_model("auth", "Permission").objects.filter(content_type__app_label=Job._meta.app_label)
        wanted = ours.filter(codename__in=codenames)
        group.permissions.remove(*ours.exclude(codename__in=codenames))
        group.permissions.add(*wanted)
        count = wanted.count()
        as_text = f"{name}: {count} permissions"
        self.stdout.write(as_json({"group": name, "permissions": count}) if format == "json" else as_text)
