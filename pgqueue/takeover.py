"""Decide what becomes of jobs whose owner let the lease run out. No leader, no slot, any live worker."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import Any

import psycopg

from . import conf
from .backoff import delay_seconds
from .foreign import told
from .logs import get_logger
from .protocol.blocking import TOLD_AFTER_SECONDS, end_blockers
from .protocol.taking_over import NOBODYS, Expired, Mine, Taken, Verdict, list_expired, take_over
from .recovery import Facts, asks_probe, decide
from .server_errors import is_for_all
from .states import Lane

logger = get_logger(__name__)

TOLD_AGAIN_SECONDS = 60.0
"""How long a session that blocks a takeover is not logged again."""


def take_over_expired(
    connection: psycopg.Connection[Any], mine: Mine = NOBODYS, *, ids: Sequence[int] | None = None
) -> list[Taken]:
    """Take over a bounded batch of jobs whose lease has run out; one bad row never blocks the others.

    A worker leaves out what it still runs itself. Without `ids`, finding any job reads all running ones.
    """
    try:
        taken = take_over(connection, ids, verdict, mine=mine)
    except psycopg.Error:
        if connection.closed:
            raise
        taken = _one_by_one(connection, mine, list_expired(connection) if ids is None else ids)
    for one in taken:
        logger.warning(
            "takeover job=%d task=%s fence=%d worker=%d losses=%d state=%s",
            one.job.id,
            one.job.task,
            one.job.fence,
            one.job.worker_id,
            one.job.lease_losses + one.verdict.counts,
            one.verdict.target,
        )
    return taken


class Blockers:
    """Deals with sessions that keep expired jobs from being taken over, and tells of each once in a while."""

    def __init__(self) -> None:
        self._told_at: dict[tuple[int, int], float] = {}

    def deal(self, connection: psycopg.Connection[Any]) -> None:
        """End what can do nothing more, and log the rest: that needs a person. No error of it costs the worker."""
        try:
            found = end_blockers(connection)
        except psycopg.Error as error:
            if connection.closed:
                raise
            logger.warning("takeover.unexplained %s", told(error))
            return
        now = time.monotonic()
        self._told_at = {key: at for key, at in self._told_at.items() if now - at < TOLD_AGAIN_SECONDS}
        for one in found:
            if one.ended:
                logger.warning("takeover.freed job=%d fence=%d pid=%d", one.job_id, one.fence, one.pid)
            elif one.expired_seconds >= TOLD_AFTER_SECONDS and (one.job_id, one.pid) not in self._told_at:
                self._told_at[one.job_id, one.pid] = now
                logger.warning(
                    "takeover.blocked job=%d fence=%d pid=%d role=%s state=%s",
                    one.job_id,
                    one.fence,
                    one.pid,
                    one.role,
                    one.state,
                )


def verdict(job: Expired) -> Verdict:
    """Apply the decision table to a locked row.

    The first loss may have been a neighbour's fault and charges nobody; from then on the job runs alone,
    and each further loss is its own. If a quarantine was lost together with its parent, the host or a neighbour in
    the parent may be the cause. That loss does not count, and the job runs isolated: without any neighbour.
    """
    settings = conf.of(queue=job.queue, task=job.task)
    losses_alone = job.lease_losses
    lost_with_parent = job.lane == Lane.ALONE and job.parent_is_alive is False
    lane = Lane.ISOLATED if lost_with_parent or job.lane == Lane.ISOLATED else Lane.ALONE
    exhausted = losses_alone >= settings.max_lease_losses and not lost_with_parent
    facts = Facts(
        recovery=job.recovery,
        unknown_effects=job.unknown_effects,
        stop_requested=job.stop_requested,
        exhausted=exhausted,
        replay_safe=job.replay_safe,
    )
    delay = 0.0 if losses_alone == 0 else _delay(losses_alone, settings)
    times = f"; lost {losses_alone} times alone, the limit is {settings.max_lease_losses}" if exhausted else ""
    beside = "; the worker that had started it was lost too, so this loss does not count" if lost_with_parent else ""
    message = f"Worker {job.worker_id} was lost under fence {job.fence}: its lease ran out{times}{beside}."
    return Verdict(decide(facts), delay, message, asks_probe(facts), lane, counts=not lost_with_parent)


def _delay(losses: int, settings: conf.Settings) -> float:
    return delay_seconds(losses, base_seconds=settings.backoff_base_seconds, cap_seconds=settings.backoff_cap_seconds)


def _one_by_one(connection: psycopg.Connection[Any], mine: Mine, ids: Sequence[int]) -> list[Taken]:
    """Take over what can be, in an order by chance: those that the server refuses let the others have a turn."""
    taken: list[Taken] = []
    in_a_row = 0
    for id in random.sample(ids, len(ids)):
        began_at = time.monotonic()
        try:
            taken.extend(take_over(connection, [id], verdict, mine=mine))
            in_a_row = 0
        except psycopg.Error as error:
            if connection.closed:
                raise
            logger.error("takeover.failed job=%d %s", id, told(error))
            in_a_row += 1
            if is_for_all(in_a_row, took_seconds=time.monotonic() - began_at):
                break
    return taken
