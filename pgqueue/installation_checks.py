"""System checks of how the queue was installed: tables, task modules, the name of the worker's command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.management import get_commands
from django.db import DatabaseError

from . import conf
from .protocol.connecting import job_alias
from .protocol.schema import has_tables, missing_parts

WORKER_COMMAND = "runworker"


@checks.register("pgqueue", checks.Tags.database)
def check_tables(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that the queue's tables are there (pgqueue.W027). Runs with `check --database`, not with `migrate`."""
    databases = kwargs.get("databases") or []
    if not databases or _is_migrating() or any(conf.problems(getattr(settings, "PGQUEUE", {}))):
        return []
    alias = job_alias()
    missing = _missing(alias) if alias in databases else ""
    if not missing:
        return []
    return [
        checks.Warning(
            f"Database {alias!r} lacks {missing}.",
            hint="Run manage.py migrate.",
            id="pgqueue.W027",
        )
    ]


def _is_migrating() -> bool:
    """`migrate` runs the checks of its database before it makes the tables."""
    return sys.argv[1:2] == ["migrate"]


def _missing(alias: str) -> str:
    """Return in words what is missing; nothing where the database cannot be asked."""
    try:
        return ", ".join(missing_parts(alias)) if has_tables(alias) else "the queue's tables"
    except DatabaseError:
        return ""


@checks.register("pgqueue")
def check_excluded_apps(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that `PGQUEUE["EXCLUDED_TASK_APPS"]` names installed apps (pgqueue.W029)."""
    if any(conf.problems(getattr(settings, "PGQUEUE", {}))):
        return []
    known = {name for app in apps.get_app_configs() for name in (app.label, app.name)}
    return [
        checks.Warning(
            f"PGQUEUE['EXCLUDED_TASK_APPS'] names {name!r}, which is not installed.",
            hint="Use the label or the name of an app in INSTALLED_APPS.",
            id="pgqueue.W029",
        )
        for name in conf.current().excluded_task_apps
        if name not in known
    ]


@checks.register("pgqueue")
def check_command_name(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that `manage.py runworker` is this queue's, which Channels has as well (pgqueue.W030)."""
    others = [app.name for app in apps.get_app_configs() if app.name != "pgqueue" and _has_worker_command(app.path)]
    if not others:
        return []
    # With DJANGO_SETTINGS_MODULE unset there are Django's own commands alone.
    winner = get_commands().get(WORKER_COMMAND, "nobody")
    return [
        checks.Warning(
            f"More than one app has a command 'runworker': pgqueue, {', '.join(others)}. Now it is that of {winner}.",
            hint="Start workers with manage.py pgqueue_worker, which is the same command under a name of its own.",
            id="pgqueue.W030",
        )
    ]


def _has_worker_command(folder: str) -> bool:
    return (Path(folder) / "management" / "commands" / f"{WORKER_COMMAND}.py").exists()
