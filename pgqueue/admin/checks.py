"""System checks of the console, run where the admin is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.contrib.admin.sites import all_sites
from django.core import checks
from django.db import DatabaseError
from django.middleware.csrf import CsrfViewMiddleware
from django.utils.module_loading import import_string

from .. import conf
from ..protocol.connecting import job_alias
from ..protocol.viewing import has_argument_index
from .base import ReadOnlyAdmin

SHOWN_SECONDS = 7 * 86_400
CLOSED = ("has_add_permission", "has_change_permission", "has_delete_permission")


@checks.register("pgqueue")
def check_actions(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that no page of the console was given an action that everybody may run (pgqueue.E021)."""
    return [
        checks.Error(
            f"{type(of).__name__} has the action {_name(action)}, which asks for no permission.",
            hint="Decorate it with @admin.action(permissions=[...]): else whoever may look may run it.",
            obj=of,
            id="pgqueue.E021",
        )
        for of in _ours()
        for action in _actions(of)
        if not getattr(_resolved(of, action), "allowed_permissions", None)
    ]


@checks.register("pgqueue")
def check_csrf(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that forms of other sites cannot act here (pgqueue.W022). The admin's own checks see to the rest."""
    if not list(_ours()) or any(issubclass(each, CsrfViewMiddleware) for each in _classes(settings.MIDDLEWARE)):
        return []
    return [
        checks.Warning(
            "MIDDLEWARE has no CsrfViewMiddleware. The admin protects its pages by itself; yours may not be.",
            hint="Add 'django.middleware.csrf.CsrfViewMiddleware'.",
            id="pgqueue.W022",
        )
    ]


@checks.register("pgqueue", checks.Tags.database, deploy=True)
def check_argument_index(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that an index finds jobs by an argument (pgqueue.W023). Runs with `check --deploy --database` only."""
    databases = kwargs.get("databases") or []
    if not databases or any(conf.problems(getattr(settings, "PGQUEUE", {}))) or not list(_ours()):
        return []
    if job_alias() not in databases or not _lacks_argument_index(job_alias()):
        return []
    return [
        checks.Warning(
            "No index answers a search for args.NAME:value in the console: on a large table it is given up.",
            hint="CREATE INDEX CONCURRENTLY ON pgqueue_jobpayload USING gin (kwargs jsonb_path_ops); or silence this.",
            id="pgqueue.W023",
        )
    ]


def _lacks_argument_index(alias: str) -> bool:
    """Say no where nobody can tell: Django 6.1 asks every database when checks are named by their tag."""
    try:
        return not has_argument_index(alias)
    except DatabaseError:
        return False


@checks.register("pgqueue")
def check_closed(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that no subclass lets rows be added, edited or deleted past the verbs (pgqueue.E025)."""
    return [
        checks.Error(
            f"{type(of).__name__} overrides {name}: rows would be written without a verb, a reason and an audit row.",
            hint="Remove the method. What operators may do are the verbs; their permissions are your groups'.",
            obj=of,
            id="pgqueue.E025",
        )
        for of in _ours()
        for name in CLOSED
        if getattr(type(of), name) is not getattr(ReadOnlyAdmin, name)
    ]


@checks.register("pgqueue")
def check_retention(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that jobs are kept for as long as the overview's figures lead to them (pgqueue.W024)."""
    if any(conf.problems(getattr(settings, "PGQUEUE", {}))):
        return []
    given = conf.current()
    kept = {"RETENTION_SECONDS": given.retention_seconds, "DEAD_RETENTION_SECONDS": given.dead_retention_seconds}
    return [
        checks.Warning(
            f"PGQUEUE[{key!r}] is {seconds:g}, and the overview counts what ended within seven days.",
            hint="Keep jobs for 604800 seconds at least: else its numbers lead to lists that no longer have them.",
            id="pgqueue.W024",
        )
        for key, seconds in kept.items()
        if seconds is not None and seconds < SHOWN_SECONDS
    ]


def _ours() -> Iterator[ReadOnlyAdmin]:
    for site in all_sites:
        for of in site._registry.values():
            if isinstance(of, ReadOnlyAdmin):
                yield of


def _actions(of: ReadOnlyAdmin) -> list[Any]:
    return list(of.actions or ())


def _resolved(of: ReadOnlyAdmin, action: Any) -> Any:
    return action if callable(action) else getattr(of, str(action), None)


def _name(action: Any) -> str:
    return str(getattr(action, "__name__", action))


def _classes(paths: list[str]) -> Iterator[type]:
    for path in paths:
        found = import_string(path)
        if isinstance(found, type):
            yield found
