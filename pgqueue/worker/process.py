"""One worker process from start to end."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping

from .. import conf, registry
from ..foreign import complain
from ..heartbeat import Heartbeat
from ..holding import Holdings
from ..keeping import keeper
from ..logs import get_logger, is_written
from ..protocol.claiming import Claimant
from ..protocol.lending import lender
from ..protocol.looking import Horizon
from ..protocol.registering import Heard
from ..sql import load_all
from .bulk_runner import BulkRunner
from .dispatcher import Dispatcher
from .exits import Exit
from .inbox import Inbox, Signal
from .isolation import needs_quarantine
from .leaving import leave
from .listener import Listener
from .options import Options
from .outage import Outage
from .pace import Pool
from .pools import Pools
from .prober import Prober
from .quarantine import LEAST_DEAF_SECONDS, Quarantine
from .recycling import MemoryWatch
from .signals import stop_signals
from .stall import Stall
from .start import Limits, sign_up
from .tally import Tally
from .upkeep import Upkeep
from .watch import Watch

logger = get_logger(__name__)

KEEPING_SECONDS = 5.0
"""Longest wait at the end for answers that the database has not taken yet."""


def run_worker(options: Options, inbox: Inbox | None = None, *, supervised: bool = False) -> int:
    """Run until a signal, a burst's end or one of the limits, and return the exit status.

    Handlers come first, so that a signal right after the start is not lost. Raise `psycopg.Error` when the
    server cannot be reached at the start, or refuses it. `inbox` is for a caller that has something to say;
    `supervised` says that this is a child of a supervisor.
    """
    inbox = inbox or Inbox()
    with stop_signals(inbox, supervised=supervised):
        registry.discover()
        load_all()
        return _run(options, inbox)


def _run(options: Options, inbox: Inbox) -> int:
    claimant, undeclared = sign_up(options)
    holdings = Holdings(options.lease_seconds)
    pools = _pools(options, claimant, inbox)
    runner = BulkRunner()
    listener = _listener(options, inbox, runner)
    stall = Stall(worker_id=claimant.worker_id, lease_seconds=options.lease_seconds)
    heartbeat = _heartbeat(options, claimant, holdings, inbox, runner, stall)
    pools.count_on(heartbeat)
    memory = MemoryWatch(options.max_memory_mb, on_over=lambda: inbox.put(Signal.STOP))
    quarantine = _quarantine(options, claimant, inbox)

    def on_drain() -> None:
        heartbeat.draining = True
        memory.stop()
        if quarantine is not None:
            quarantine.drain()

    tally = Tally()
    upkeep = _upkeep(options, claimant, tally, undeclared)
    dispatcher = Dispatcher(
        options=options,
        claimant=claimant,
        holdings=holdings,
        pools=pools,
        inbox=inbox,
        tally=tally,
        stall=stall,
        outage=Outage(holdings, lease_seconds=options.lease_seconds, settle_elsewhere=heartbeat.settle),
        is_listening=lambda: listener is not None and listener.is_listening,
        on_drain=on_drain,
        on_look=_look_heeder(upkeep, quarantine),
    )
    prober = Prober(alias=options.alias, worker_id=claimant.worker_id, tasks=registry.probed())
    # A quarantine may die at any time: it does nothing for others.
    for_others = () if options.parent_id else (prober, runner)
    for part in (pools, heartbeat, memory, upkeep, *for_others, listener, quarantine):
        if part is not None:
            part.start()
    _log_start(claimant, announces=options.announces_start)
    try:
        dispatcher.run()
        _end_quarantine(quarantine, dispatcher)
    finally:
        for part in (listener, memory, prober, runner, heartbeat, pools, upkeep):
            if part is not None:
                part.stop()
        keeper.flush(timeout_seconds=KEEPING_SECONDS)
        lender.close()
    return _finish(options, claimant, dispatcher, pools, memory)


def _listener(options: Options, inbox: Inbox, runner: BulkRunner) -> Listener | None:
    if options.parent_id or not conf.current().listen:
        return None
    return Listener(options.alias, on_wake=lambda: inbox.put(Signal.WAKE), on_bulk=runner.hint)


def _quarantine(options: Options, claimant: Claimant, inbox: Inbox) -> Quarantine | None:
    if options.quarantine is None:
        return None
    return Quarantine(
        options.quarantine,
        worker_id=claimant.worker_id,
        on_end=lambda: inbox.put(Signal.WAKE),
        deaf_seconds=max(LEAST_DEAF_SECONDS, options.lease_seconds),
    )


def _look_heeder(upkeep: Upkeep, quarantine: Quarantine | None) -> Callable[[Horizon], None]:
    """Return what heeds a look: queues that are new get their rows, and jobs that lost a lease their process."""
    named: set[str] = set()

    def heed(horizon: Horizon) -> None:
        if new := horizon.queues - named:
            named.update(new)
            upkeep.add_queues(new)
        if quarantine is not None and needs_quarantine(horizon):
            quarantine.want()

    return heed


def _end_quarantine(quarantine: Quarantine | None, dispatcher: Dispatcher) -> None:
    """Wait for its job like for the worker's own. The heartbeat goes on, so that a loss of the job counts."""
    if quarantine is not None:
        quarantine.stop(wait=not (dispatcher.orders.is_unfit or dispatcher.orders.has_stuck))


def _log_start(claimant: Claimant, *, announces: bool) -> None:
    facts = (claimant.worker_id, os.getpid(), len(claimant.tasks))
    logger.info("worker.started worker=%d pid=%d tasks=%d", *facts)
    if announces and not is_written(logger.logger, logging.INFO):
        line = "worker.started worker={} pid={} tasks={} (LOGGING drops the INFO lines of the logger pgqueue)"
        complain(line.format(*facts))
    if not claimant.tasks:
        modules = ", ".join(conf.current().task_modules)
        logger.warning("worker.no_tasks modules=%s hint=%r", modules, "is the app in INSTALLED_APPS?")


def _finish(options: Options, claimant: Claimant, dispatcher: Dispatcher, pools: Pools, memory: MemoryWatch) -> Exit:
    """Say what became of the process, and return its exit status; with stuck runs, leave with it."""
    _log_end(claimant, dispatcher.aftermath.outcomes())
    if pools.stuck() or pools.abandoned():
        leave(pools.stuck(), pools.abandoned(), alias=options.alias, worker_id=claimant.worker_id)
    return _status(dispatcher, memory, options)


def _log_end(claimant: Claimant, outcomes: Mapping[str, int]) -> None:
    ended = " ".join(f"{state}={jobs}" for state, jobs in sorted(outcomes.items()))
    logger.info("worker.stopped worker=%d %s", claimant.worker_id, ended or "ended=0")


def _upkeep(options: Options, claimant: Claimant, tally: Tally, undeclared: Limits | None) -> Upkeep:
    return Upkeep(
        alias=options.alias,
        worker_id=claimant.worker_id,
        tally=tally,
        limits=undeclared,
        retention_seconds=conf.current().worker_retention_seconds,
    )


def _heartbeat(
    options: Options, claimant: Claimant, holdings: Holdings, inbox: Inbox, runner: BulkRunner, stall: Stall
) -> Heartbeat:
    def heed(heard: Heard) -> None:
        stall.look()
        if heard.drain_requested:
            inbox.put(Signal.STOP)
        if heard.bulk_runs:
            runner.hint()

    return Heartbeat(
        alias=options.alias,
        worker_id=claimant.worker_id,
        holdings=holdings,
        lease_seconds=options.lease_seconds,
        every_seconds=options.lease_seconds / conf.current().heartbeats_per_lease,
        on_all_run_out=lambda: inbox.put(Signal.LEASES_RAN_OUT),
        on_heard=heed,
    )


def _status(dispatcher: Dispatcher, memory: MemoryWatch, options: Options) -> Exit:
    if dispatcher.orders.has_stuck:
        return Exit.STUCK
    if dispatcher.orders.is_unfit:
        return Exit.UNFIT
    if options.parent_id and not dispatcher.aftermath.outcomes():
        return Exit.IDLE
    return Exit.MEMORY if memory.is_over else Exit.DONE


def _pools(options: Options, claimant: Claimant, inbox: Inbox) -> Pools:
    on_loop = options.async_concurrency or conf.current().async_concurrency
    return Pools(
        claimant.tasks,
        slots={Pool.THREADS: options.concurrency, Pool.LOOP: on_loop},
        watch=Watch(on_stuck=lambda: inbox.put(Signal.STUCK)),
        on_ending=inbox.add,
        on_rest=lambda: inbox.put(Signal.RESTED),
        on_loop_death=lambda: inbox.put(Signal.LOOP_DIED),
    )
