"""The Django app."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.db.migrations.loader import MigrationLoader
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _

from .protocol.schema import create_missing_parts


class PGQueueConfig(AppConfig):
    """Wires the checks; tasks are found when a worker starts."""

    name = "pgqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks, installation_checks  # noqa: F401  registers the system checks

        post_migrate.connect(complete_tables, sender=self, dispatch_uid="pgqueue.complete_tables")


def complete_tables(sender: AppConfig, using: str, **_: Any) -> None:
    """Create what no model describes, where the tables were made without this app's migrations.

    Test databases are often made so: `pytest --nomigrations`, `TEST = {"MIGRATE": False}`, `MIGRATION_MODULES`.
    """
    module, _explicit = MigrationLoader.migrations_module(sender.label)
    if module is None and connections[using].vendor == "postgresql":
        create_missing_parts(using)
