"""Run a body and complete its job in one transaction of the job's database: both are there, or neither."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from django.db import connections, transaction
from django.db.utils import DatabaseError

from .exceptions import LeaseLostError
from .failures import FailureClass, classify
from .holding import Held
from .logs import get_logger
from .payloads import encode_result
from .protocol.borrowing import beneath, borrowed, has_begun
from .protocol.completing import complete_alone, settle_alone
from .protocol.connecting import job_alias
from .protocol.lending import lender
from .protocol.settling import Ending, EndingKind, Settled, Written, settled

logger = get_logger(__name__)

REPEATS = 3
"""Times that a body is repeated in place, uncharged, after a deadlock or a serialization failure."""
REPEATED = (FailureClass.DEADLOCK, FailureClass.SERIALIZATION)
SHORTEST_HOLD_SECONDS = 1.0
"""Time for a COMMIT to arrive of which a lease that is nearly over leaves less."""
LOCKED_RETRY_SECONDS = 0.02
"""Pause before the completion is written again whose row somebody had locked, as a heartbeat does."""


def call_and_complete(held: Held, call: Callable[[], Any]) -> Ending:
    """Call the body and write its completion, the last act of their one transaction; return what was written.

    Raise what the body raises, and `LeaseLostError`: nothing of the body is left then. When the answer to COMMIT is
    lost, nobody knows here whether it all took effect: whoever settles the failure looks the completion up first.
    """
    began_at = time.monotonic()
    for repeat in range(REPEATS + 1):
        try:
            return _in_one_transaction(held, call, began_at)
        except DatabaseError as error:
            if repeat == REPEATS or classify(error) not in REPEATED or _must_end(held):
                raise
            logger.warning("job.repeated job=%d repeat=%d class=%s", held.lease.id, repeat + 1, classify(error))
    raise AssertionError("not reached")


def _in_one_transaction(held: Held, call: Callable[[], Any], began_at: float) -> Ending:
    alias = job_alias()
    try:
        with transaction.atomic(using=alias, durable=True):
            if held.lend is None:
                # The first hook: those of the body run once the COMMIT was answered, and may take their time.
                transaction.on_commit(held.stop_awaiting, using=alias)
            result = encode_result(call(), max_bytes=held.settings().max_result_bytes)
            run_seconds = time.monotonic() - began_at
            ending = Ending(EndingKind.COMPLETE, held.lease.id, held.lease.fence, run_seconds, result=result)
            with connections[alias].wrap_database_errors:
                written = _complete(alias, held, ending)
            if held.lend is None:
                held.awaited = connections[alias].connection
    finally:
        held.stop_awaiting()
    return ending._replace(written=written, settle_seconds=time.monotonic() - began_at - run_seconds)


def _complete(alias: str, held: Held, ending: Ending) -> Written:
    write = _write_within if held.lend is not None or has_begun(alias) else _write_apart
    while True:
        found = write(alias, held, ending)
        if ending.id in found.written:
            return found.written[ending.id]
        for _, error in found.refused:
            raise error
        if found.lost or held.may_be_lost():
            raise LeaseLostError(ending.id, ending.fence)
        time.sleep(LOCKED_RETRY_SECONDS)


def _write_within(alias: str, held: Held, ending: Ending) -> Settled:
    """Write it in the body's transaction. Only where it matched nothing is it worth more than one round trip.

    The transaction holds the job's row from then on, and no longer than the lease if its COMMIT never arrives.
    """
    worker_id = held.lease.worker_id
    hold_ms = None if held.lend is not None else int(max(SHORTEST_HOLD_SECONDS, held.seconds_left()) * 1000)
    if written := complete_alone(beneath(alias), worker_id=worker_id, ending=ending, hold_ms=hold_ms):
        return Settled(written)
    with borrowed(alias) as connection:
        return settled(connection, worker_id=worker_id, endings=[ending], written={})


def _write_apart(alias: str, held: Held, ending: Ending) -> Settled:
    """Write what is all of a transaction in which the body has sent nothing, on a connection of the queue's own."""
    with lender.lend(alias) as connection:
        return settle_alone(connection, worker_id=held.lease.worker_id, ending=ending)


def _must_end(held: Held) -> bool:
    return held.may_be_lost() or held.stop_requested or held.timed_out
