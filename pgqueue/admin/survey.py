"""The overview's figures, read at most once in five seconds by each process, however many tabs are open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..models import OperatorAction
from ..protocol import surveying
from ..protocol.blocking import Blocker, list_blockers
from ..protocol.counting import Standing
from ..protocol.surveying import Failures, Live, Silent
from ..protocol.viewing import TooSlowError, bounded, database_now
from ..states import Outcome
from .waits import due_groups

FRESH_SECONDS = 5.0
LATEST_ACTIONS = 8
READ_ACTIONS = 600
"""A bulk action must not push out what was done before it: its rows are told as one."""

RANGES = {"1h": (60, 60), "6h": (300, 72), "24h": (900, 96), "7d": (7200, 84)}
"""Seconds of a step and number of steps, by the word in the URL."""


@dataclass(frozen=True, slots=True)
class Survey:
    """All that the overview shows, in eight queries. What was too slow to be read is None, or empty, and `too_slow`."""

    live: Live | None
    silent: list[Silent]
    blockers: list[Blocker]
    minutes: list[tuple[int, str, int]]
    histograms: list[tuple[int, int, int, int]]
    failures: list[Failures]
    actions: list[OperatorAction]
    standing: list[Standing]
    """What due jobs wait for."""
    too_slow: frozenset[str]
    """Names of the fields above that were not read."""
    at: datetime


_lock = threading.Lock()
_kept: dict[tuple[str, str], tuple[float, Survey]] = {}


def survey(alias: str, range: str, *, within_seconds: float) -> Survey:
    """Return figures that are no older than `FRESH_SECONDS`; whoever asks meanwhile waits for the same answer.

    Called within a `read_only` transaction. All queries together take `within_seconds`, and each a part of it.
    """
    with _lock:
        until, kept = _kept.get((alias, range), (0.0, None))
        if kept is None or time.monotonic() >= until:
            kept = _read(alias, range, time.monotonic() + within_seconds)
            _kept[alias, range] = (time.monotonic() + FRESH_SECONDS, kept)
        return kept


def forget() -> None:
    """Forget what was read: the next look reads anew."""
    _kept.clear()


def _read(alias: str, range: str, deadline: float) -> Survey:
    step, steps = RANGES[range]
    asked: dict[str, Any] = {"step_seconds": step, "steps": steps}
    at = database_now(alias)
    found: dict[str, Any] = {}
    # Small tables first. Each query may take half of the time that is left, and the last one all of it.
    reads: dict[str, Callable[[], Any]] = {
        "actions": lambda: _actions(alias),
        "minutes": lambda: surveying.minutes(alias, **asked),
        "failures": lambda: surveying.failures(alias),
        "histograms": lambda: surveying.histograms(alias, **asked),
        "silent": lambda: surveying.silent(alias),
        "blockers": lambda: list_blockers(alias),
        "still_dead": lambda: surveying.with_still_dead(alias, found.get("failures", [])),
        "standing": lambda: due_groups(alias),
        "live": lambda: surveying.live(alias),
    }
    for name, read in reads.items():
        left = deadline - time.monotonic()
        with suppress(TooSlowError), bounded(alias, timeout_seconds=left if name == "live" else left / 2):
            found[name] = read()
    too_slow = frozenset(reads) - frozenset(found)
    # Failures are known without the jobs that are still dead, which are in the table of jobs.
    found["failures"] = found.pop("still_dead", None) or found.get("failures", [])
    empty: dict[str, Any] = {name: None if name == "live" else [] for name in too_slow - {"still_dead", "failures"}}
    return Survey(**found, **empty, too_slow=too_slow, at=at)


def _actions(alias: str) -> list[OperatorAction]:
    """Return the latest deeds. Who was not allowed to act has done nothing, and must not push out what was done."""
    deeds = OperatorAction.objects.using(alias).exclude(outcome=Outcome.FORBIDDEN)
    return list(deeds.order_by("-id").defer("facts", "params")[:READ_ACTIONS])


def bulk_of(action: OperatorAction) -> str | None:
    """Return the number of the bulk action that a row is of."""
    kind, _, rest = (action.idempotency_key or "").partition(":")
    return rest.partition(":")[0] if kind == "bulk" else None


def collapsed(actions: list[OperatorAction]) -> list[tuple[OperatorAction, int]]:
    """Return the latest actions, the rows of one bulk action with one outcome as one, and how many each stands for."""
    told: dict[Any, tuple[OperatorAction, int]] = {}
    for action in actions:
        bulk = bulk_of(action)
        key = action.pk if bulk is None else (bulk, action.outcome)
        first, rows = told.get(key, (action, 0))
        told[key] = (first, rows + 1)
    return list(told.values())[:LATEST_ACTIONS]
