"""One worker process from start to end."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

import psycopg

from .. import conf, registry
from ..heartbeat import Heartbeat
from ..holding import Holdings
from ..protocol.claiming import Claimant
from ..protocol.connecting import connect
from ..protocol.registering import register
from ..version import __version__
from .dispatcher import Dispatcher
from .executor import Executor
from .inbox import Inbox, Signal
from .listener import Listener
from .options import Options
from .signals import stop_signals

logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_LEASES_RAN_OUT = 75
"""EX_TEMPFAIL of sysexits.h: start it again."""


def run_worker(options: Options) -> int:
    """Run until a signal, a burst's end or a job count, and return the exit status.

    Handlers come first, so that a signal right after the start is not lost. Raise `psycopg.OperationalError`
    when the server cannot be reached at the start.
    """
    inbox = Inbox()
    with stop_signals(inbox):
        registry.discover()
        return _run(options, inbox)


def _run(options: Options, inbox: Inbox) -> int:
    settings = conf.current()
    claimant = _register(options)
    holdings = Holdings(options.lease_seconds)
    executor = Executor(
        options.concurrency, on_ending=inbox.put, on_notice_given=lambda: inbox.put(Signal.NOTICE_GIVEN)
    )
    listener = Listener(options.alias, on_wake=lambda: inbox.put(Signal.WAKE)) if settings.listen else None
    heartbeat = Heartbeat(
        alias=options.alias,
        worker_id=claimant.worker_id,
        holdings=holdings,
        lease_seconds=options.lease_seconds,
        every_seconds=options.lease_seconds / settings.heartbeats_per_lease,
        on_all_run_out=lambda: inbox.put(Signal.LEASES_RAN_OUT),
    )

    def on_drain() -> None:
        heartbeat.draining = True

    dispatcher = Dispatcher(
        options=options,
        claimant=claimant,
        holdings=holdings,
        executor=executor,
        inbox=inbox,
        is_listening=lambda: listener is not None and listener.is_listening,
        on_drain=on_drain,
    )
    executor.start()
    heartbeat.start()
    if listener is not None:
        listener.start()
    logger.info("worker.started worker=%d pid=%d tasks=%d", claimant.worker_id, os.getpid(), len(claimant.tasks))
    try:
        dispatcher.run()
    finally:
        if listener is not None:
            listener.stop()
        heartbeat.stop()
        executor.stop()
    logger.info("worker.stopped worker=%d", claimant.worker_id)
    return EXIT_LEASES_RAN_OUT if dispatcher.ran_out else EXIT_OK


def _register(options: Options) -> Claimant:
    tasks = registry.names()
    connection: psycopg.Connection[Any]
    with connect(options.alias, role="worker") as connection:
        worker_id = register(
            connection,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            slots=options.concurrency,
            lease_seconds=options.lease_seconds,
            queues=options.queues,
            excluded=options.excluded,
            tasks=tasks,
            retention_seconds=conf.current().worker_retention_seconds,
        )
    return Claimant(
        worker_id=worker_id,
        tasks=tasks,
        lease_seconds=options.lease_seconds,
        queues=options.queues,
        excluded=options.excluded,
    )
