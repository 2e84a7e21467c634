"""System checks: misconfiguration is told before anything runs."""

from __future__ import annotations

import difflib
from typing import Any

from django.conf import settings
from django.core import checks
from django.db import DatabaseError, connections

from . import conf, registry
from .backend import PGQueueBackend
from .compat import InvalidTaskBackend, task_backends
from .protocol.connecting import job_alias
from .protocol.refusing import ADVICE, why_read_only
from .states import Recovery

_BOUNDS = {"keepalives_idle", "tcp_user_timeout"}


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


@checks.register("pgqueue", checks.Tags.database)
def check_primary(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that jobs are not written to a standby or a read-only database (pgqueue.W019); asks it, if you do."""
    databases = kwargs.get("databases") or []
    if any(conf.problems(getattr(settings, "PGQUEUE", {}))) or job_alias() not in databases:
        return []
    why = _why_read_only(job_alias())
    return [] if why is None else [checks.Warning(why, hint=ADVICE, id="pgqueue.W019")]


def _why_read_only(alias: str) -> str | None:
    """Return None where nobody can tell: Django 6.1 asks every database when checks are named by their tag."""
    try:
        return why_read_only(alias) if connections[alias].vendor == "postgresql" else None
    except DatabaseError:
        return None


@checks.register("pgqueue")
def check_pools(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that no pool is smaller than what a worker runs at once: tasks would wait for it (pgqueue.W012)."""
    if any(conf.problems(getattr(settings, "PGQUEUE", {}))):
        return []
    pools = _pools()
    needed = _connections_of_a_worker() if pools else 0
    return [
        checks.Warning(
            f"The connection pool of database {alias!r} holds {size}, and a worker process runs {needed} tasks.",
            hint="Give the pool that max_size, or lower PGQUEUE['CONCURRENCY'] and, where there are async tasks,"
            " PGQUEUE['ASYNC_THREADS'].",
            id="pgqueue.W012",
        )
        for alias, size in pools.items()
        if size < needed
    ]


def _pools() -> dict[str, int]:
    sizes = {alias: _pool_size(database.get("OPTIONS", {}).get("pool")) for alias, database in _databases()}
    return {alias: size for alias, size in sizes.items() if size is not None}


def _connections_of_a_worker() -> int:
    """Return how many tasks may want a connection at once: one a thread, also of those that async tasks use."""
    given = conf.current()
    registry.discover_what_can_be()
    has_async = any(registry.is_async(name) for name in registry.names())
    return given.concurrency + (given.async_threads if has_async else 0)


@checks.register("pgqueue")
def check_backends(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that `TASKS` has an alias of pgqueue: Django's own tasks go elsewhere (pgqueue.W013)."""
    backends, broken = our_backends()
    if backends or broken:
        return []
    return [
        checks.Warning(
            "No alias of TASKS uses pgqueue, so functions declared with Django's own task decorator do not run on it."
            " Without TASKS they run at once, in the process that enqueues them.",
            hint='Set TASKS = {"default": {"BACKEND": "pgqueue.backend.PGQueueBackend", "QUEUES": []}}; or silence this'
            " if every task is declared with pgqueue.task.",
            id="pgqueue.W013",
        )
    ]


@checks.register("pgqueue")
def check_options(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that `TASKS` gives our backend no `OPTIONS`: none is read (pgqueue.E002)."""
    return [
        checks.Error(
            f"The TASKS alias {backend.alias!r} has OPTIONS that pgqueue would ignore: {', '.join(backend.options)}.",
            hint="Remove OPTIONS there. What can be set for pgqueue is a key of PGQUEUE.",
            id="pgqueue.E002",
        )
        for backend in our_backends()[0]
        if backend.options
    ]


@checks.register("pgqueue")
def check_backend_paths(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that every backend that `TASKS` names can be imported (pgqueue.E026)."""
    return [
        checks.Error(
            f"The backend of the TASKS alias {alias!r} cannot be imported: {error}",
            hint="This queue's is 'pgqueue.backend.PGQueueBackend'.",
            id="pgqueue.E026",
        )
        for alias, error in our_backends()[1].items()
    ]


def our_backends() -> tuple[list[PGQueueBackend], dict[str, InvalidTaskBackend]]:
    """Return the backends of `TASKS` that are this queue's, and by alias what was raised by those with no class."""
    found, broken = [], {}
    for alias in task_backends:
        try:
            found.append(task_backends[alias])
        except InvalidTaskBackend as error:
            broken[alias] = error
    return [backend for backend in found if isinstance(backend, PGQueueBackend)], broken


@checks.register("pgqueue")
def check_task_names(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that `PGQUEUE["TASKS"]` names tasks that exist (pgqueue.W014)."""
    if any(conf.problems(getattr(settings, "PGQUEUE", {}))) or not conf.current().tasks:
        return []
    registry.discover_what_can_be()
    known = registry.names()
    return [
        checks.Warning(
            f"PGQUEUE['TASKS'][{name!r}] is about a task that no installed app has.",
            hint=f"Did you mean {near[0]!r}?" if near else "Use the path of its function, such as 'shop.tasks.charge'.",
            id="pgqueue.W014",
        )
        for name in conf.current().tasks
        if name not in known
        for near in [difflib.get_close_matches(name, known, n=1)]
    ]


@checks.register("pgqueue")
def check_skipped_modules(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Tell of task modules that could not be imported, where other checks import them (pgqueue.W028)."""
    return _cannot_be_imported() if _are_imported_by_checks() else []


@checks.register("pgqueue", deploy=True)
def check_task_modules(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that a worker can import every task module (pgqueue.W028). Runs with `check --deploy`."""
    return [] if _are_imported_by_checks() else _cannot_be_imported()


def _are_imported_by_checks() -> bool:
    """Return whether checks that run everywhere need the tasks: of pools and of `PGQUEUE["TASKS"]`."""
    if any(conf.problems(getattr(settings, "PGQUEUE", {}))):
        return False
    return bool(_pools() or conf.current().tasks)


def _cannot_be_imported() -> list[checks.CheckMessage]:
    """Check that every task module can be imported. Runs where other checks import them, and with `--deploy`."""
    if any(conf.problems(getattr(settings, "PGQUEUE", {}))):
        return []
    return [
        checks.Warning(
            f"{error.module} cannot be imported: {error.problem} Its tasks are not checked, and no worker starts.",
            hint="Fix it, or name its app in PGQUEUE['EXCLUDED_TASK_APPS'].",
            id="pgqueue.W028",
        )
        for error in registry.discover_what_can_be()
    ]


@checks.register("pgqueue")
def check_probes(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that every task that is to be probed has a probe (pgqueue.E015). Knows the modules imported so far."""
    return [
        checks.Error(
            f"{name} has recovery='probe' and no probe.",
            hint="Decorate the function that asks with .probe of the task.",
            id="pgqueue.E015",
        )
        for name in registry.names()
        if _recovery(name) == Recovery.PROBE and name not in registry.probed()
    ]


@checks.register("pgqueue", deploy=True)
def check_health_checks(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that a connection that is kept is looked at before it is used again (pgqueue.W017)."""
    return [
        checks.Warning(
            f"Connections to database {alias!r} are kept, and not checked before they are used again: after a restart"
            " of the server, each thread of a worker fails one attempt of a job.",
            hint=f"Set CONN_HEALTH_CHECKS to True in DATABASES[{alias!r}].",
            id="pgqueue.W017",
        )
        for alias, database in _postgresqls()
        if database.get("CONN_MAX_AGE", 0) != 0 and not database.get("CONN_HEALTH_CHECKS", False)
    ]


@checks.register("pgqueue", deploy=True)
def check_keepalives(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """Check that a task does not wait for ever on a cut network, on Django's own connections (pgqueue.W018)."""
    return [
        checks.Warning(
            f"Nothing bounds how long a task waits on a connection to database {alias!r} when the network is cut."
            " By the system's defaults that is up to two hours.",
            hint=f"Set keepalives_idle and tcp_user_timeout in OPTIONS of DATABASES[{alias!r}].",
            id="pgqueue.W018",
        )
        for alias, database in _postgresqls()
        if _is_remote(database) and not database.get("OPTIONS", {}).keys() >= _BOUNDS
    ]


def _is_remote(database: dict[str, Any]) -> bool:
    """Return whether a network is in between. What a service file says is not known here, and counts as local."""
    host = str(database.get("HOST") or database.get("OPTIONS", {}).get("host") or "")
    return bool(host) and not host.startswith(("/", "@", "127.")) and host not in ("localhost", "::1")


@checks.register("pgqueue", deploy=True)
def check_undeclared(app_configs: Any, **kwargs: Any) -> list[checks.CheckMessage]:
    """List the tasks without a recovery policy (pgqueue.W016); imports the task modules, as a worker does."""
    if any(conf.problems(getattr(settings, "PGQUEUE", {}))):
        return []
    registry.discover_what_can_be()
    undeclared = [name for name in registry.names() if _recovery(name) == Recovery.UNDECLARED]
    kind = checks.Error if conf.current().require_recovery else checks.Warning
    return [
        kind(
            f"{name} declares no recovery policy: it runs again whenever its worker is lost.",
            hint="Declare recovery= on the task; PGQUEUE['REQUIRE_RECOVERY'] refuses those that do not.",
            id="pgqueue.W016",
        )
        for name in undeclared
    ]


def _recovery(name: str) -> str:
    return str(getattr(registry.get(name), "recovery", Recovery.UNDECLARED))


def _databases() -> list[tuple[str, dict[str, Any]]]:
    return [(alias, connections.settings[alias]) for alias in connections]


def _postgresqls() -> list[tuple[str, dict[str, Any]]]:
    return [(alias, database) for alias, database in _databases() if connections[alias].vendor == "postgresql"]


def _pool_size(pool: Any) -> int | None:
    """Return how many connections a pool may hold, by the rules and the default of psycopg_pool; None without one."""
    if not pool:
        return None
    options = pool if isinstance(pool, dict) else {}
    smallest = int(options.get("min_size", 4))
    return int(options.get("max_size") or smallest)
