"""Wake workers after the caller's commit: a hint, debounced, and never part of the caller's transaction."""

from __future__ import annotations

import time
from dataclasses import dataclass

from django.db import connections, transaction
from django.db.transaction import TransactionManagementError

from . import conf
from .logs import get_logger
from .protocol import inserting
from .protocol.listening import BULK, QUEUES

logger = get_logger(__name__)

LOOKED_AT = 8
"""How many hooks planned before are looked at: as many queues may take turns in one block."""
_sent_at: dict[_Wake, float] = {}


@dataclass(frozen=True, slots=True)
class _Wake:
    alias: str
    queue: str
    channel: str = QUEUES

    def __call__(self) -> None:
        """Notify, unless this process did so within the window.

        A worker that was woken looks again after the window, so that what is left out here is found then.
        """
        if _said_before(self):
            return
        _sent_at[self] = time.monotonic()
        try:
            inserting.notify(self.alias, self.channel, self.queue)
        except Exception as error:  # The caller has committed: nothing may look as if that had failed.
            logger.warning("notify.failed queue=%s error=%s", self.queue, type(error).__name__)


def wake(alias: str, queue: str) -> None:
    """Wake workers of `queue` once the caller's transaction has committed; at once if there is none."""
    _plan(_Wake(alias, queue))


def hint_bulk(alias: str) -> None:
    """Tell workers that a bulk action was started, once the caller's transaction has committed."""
    _plan(_Wake(alias, "", BULK))


def _plan(hint: _Wake) -> None:
    alias = hint.alias
    if not conf.current().notify:
        return
    if _said_before(hint) and not connections[alias].in_atomic_block:
        return
    if _planned_before(alias, hint):
        return
    try:
        transaction.on_commit(hint, using=alias)
    except TransactionManagementError:
        return  # Autocommit is off and no block is open: Django cannot tell when the caller commits. Polling can.


def may_travel(alias: str, queue: str) -> bool:
    """Say whether a hint is due, and may be given by the insert itself: nobody's transaction is open."""
    connection, hint = connections[alias], _Wake(alias, queue)
    is_due = conf.current().notify and not _said_before(hint)
    return is_due and not connection.in_atomic_block and connection.get_autocommit()


def note(alias: str, queue: str) -> None:
    """Take it that a hint was given."""
    _sent_at[_Wake(alias, queue)] = time.monotonic()


def _said_before(hint: _Wake) -> bool:
    said_at = _sent_at.get(hint, float("-inf"))
    return time.monotonic() - said_at < conf.current().notify_window_seconds


def _planned_before(alias: str, hint: _Wake) -> bool:
    """A thousand enqueues in one block need one hint; it must stand in the same savepoints to be as lasting."""
    connection = connections[alias]
    if not connection.run_on_commit:
        return False
    savepoints = set(connection.savepoint_ids)
    return any(hook[0] == savepoints and hook[1] == hint for hook in connection.run_on_commit[-LOOKED_AT:])
