"""System checks: misconfiguration is told before anything runs."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core import checks
from django.db import connections

from . import conf
from .protocol.connecting import job_alias


@checks.register("pgqueue")
def check_settings(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check the `PGQUEUE` dict (pgqueue.E010)."""
    given = getattr(settings, "PGQUEUE", {})
    return [checks.Error(problem.message, hint=problem.hint, id="pgqueue.E010") for problem in conf.problems(given)]


@checks.register("pgqueue")
def check_database(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that jobs go to a PostgreSQL (pgqueue.E011). Connects to nothing."""
    if any(conf.problems(getattr(settings, "PGQUEUE", {}))):
        return []
    alias = job_alias()
    if connections[alias].vendor == "postgresql":
        return []
    return [
        checks.Error(
            f"Jobs are written to database {alias!r}, which is {connections[alias].display_name}.",
            hint="Name a PostgreSQL's alias in PGQUEUE['DATABASE'], or in a database router.",
            id="pgqueue.E011",
        )
    ]


@checks.register("pgqueue")
def check_pools(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that no pool is smaller than the worker's threads: tasks would wait for a connection (pgqueue.W012)."""
    if any(conf.problems(getattr(settings, "PGQUEUE", {}))):
        return []
    threads = conf.current().concurrency
    sizes = {alias: _pool_size(database.get("OPTIONS", {}).get("pool")) for alias, database in _databases()}
    return [
        checks.Warning(
            f"The connection pool of database {alias!r} holds {size}, and a worker has {threads} threads.",
            hint="Give the pool a max_size of PGQUEUE['CONCURRENCY'] at least, or lower that.",
            id="pgqueue.W012",
        )
        for alias, size in sizes.items()
        if size is not None and size < threads
    ]


def _databases() -> list[tuple[str, dict[str, Any]]]:
    return [(alias, connections.settings[alias]) for alias in connections]


def _pool_size(pool: Any) -> int | None:
    """Return how many connections a pool may hold, by the rules and the default of psycopg_pool; None without one."""
    if not pool:
        return None
    options = pool if isinstance(pool, dict) else {}
    smallest = int(options.get("min_size", 4))
    return int(options.get("max_size") or smallest)
