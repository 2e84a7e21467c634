"""How a worker process is registered before it works."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import psycopg

from .. import conf, registry
from ..logs import get_logger
from ..protocol.claiming import Claimant
from ..protocol.connecting import connect
from ..protocol.naming import worker_knows_queues
from ..protocol.registering import register
from ..protocol.upkeep import declare_limits
from ..queue_names import declared_queues
from ..server_errors import may_pass
from ..version import __version__
from .options import Options

logger = get_logger(__name__)

Limits = Mapping[str, Mapping[str, Any]]
DECLARING_SECONDS = 3.0
"""Time for declaring limits at the start, once one of them had to be waited for in vain."""


def sign_up(options: Options) -> tuple[Claimant, Limits | None]:
    """Return who claims, and the limits of the settings if they could not be declared. Raise `psycopg.Error`."""
    connection: psycopg.Connection[Any]
    with connect(options.alias, role="worker") as connection:
        worker_id = _register(connection, options)
        _tell_unknown_queues(connection, options)
        undeclared = _declare(connection, conf.current().limits)
    claimant = Claimant(
        worker_id=worker_id,
        tasks=registry.names(),
        lease_seconds=options.lease_seconds,
        queues=options.queues,
        excluded=options.excluded,
    )
    return claimant, undeclared


def rehearse(options: Options) -> None:
    """Register a worker and roll it back. Raise `psycopg.Error` where every worker would meet the same refusal.

    A server that is away, busy or locked may be there for the next try: nothing is raised then.
    """
    try:
        with connect(options.alias, role="worker") as connection, connection.transaction(force_rollback=True):
            _register(connection, options)
    except psycopg.Error as error:
        if not may_pass(error):
            raise


def _register(connection: psycopg.Connection[Any], options: Options) -> int:
    return register(
        connection,
        host=socket.gethostname(),
        pid=os.getpid(),
        release=__version__,
        slots=options.concurrency,
        lease_seconds=options.lease_seconds,
        queues=options.queues,
        excluded=options.excluded,
        tasks=registry.names(),
        parent_id=options.parent_id,
    )


def _tell_unknown_queues(connection: psycopg.Connection[Any], options: Options) -> None:
    """Tell of queues that nothing has a job or a task for: a worker of a misspelt one would wait for ever."""
    if options.parent_id is not None:
        return  # The worker that started this quarantine has told it.
    given = set(options.queues or options.excluded) - declared_queues()
    for name in sorted(given - worker_knows_queues(connection, given)) if given else ():
        logger.warning("worker.unknown_queue queue=%s problem=no_task_and_no_job_has_it", name)


def _declare(connection: psycopg.Connection[Any], limits: Limits) -> Limits | None:
    """Declare the limits before the first claim, if nobody holds them for long; return them where it failed."""
    try:
        declare_limits(connection, limits, most_seconds=DECLARING_SECONDS)
    except psycopg.Error as error:
        logger.warning("limits.undeclared error=%s sqlstate=%s", type(error).__name__, error.sqlstate or "-")
        return limits
    return None
