"""The statements of an operator's action, on Django's connection; `operations` owns the transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from django.db import IntegrityError, connections

from ..sql import load
from ..states import Stage, State
from .following import enqueue_on_dead


@dataclass(frozen=True, slots=True)
class Change:
    """What an applied verb left behind."""

    version: int
    state: str
    queue: str
    new_job_id: int | None = None


@dataclass(frozen=True, slots=True)
class Replay:
    """An action that was applied before under the same idempotency key."""

    id: int
    verb: str
    target_kind: str
    target_id: str
    version_after: int
    created_at: datetime
    same_params: bool
    """Whether it was asked for with the same params as now."""


@dataclass(frozen=True, slots=True)
class AuditRow:
    """One row of the audit log; instants are the database's."""

    verb: str
    target_kind: str
    outcome: str
    actor_id: str | None
    actor_name: str
    params: Mapping[str, Any]
    facts: Mapping[str, Any]
    target_id: str = ""
    reason: str = ""
    ticket: str = ""
    version_seen: int | None = None
    version_found: int | None = None
    version_after: int | None = None
    state_found: str | None = None
    idempotency_key: str | None = None


LONGEST_TEXT = 2_000


def bigint(number: int | None) -> int | None:
    """Return None for a number that no column holds, and so no row can have."""
    return number if number is not None and -(2**63) <= number < 2**63 else None


def text(value: str) -> str:
    """Return what the database holds of a text: bounded, no NUL, no half of a surrogate pair."""
    return value.replace("\0", "").encode(errors="replace").decode().strip()[:LONGEST_TEXT]


def begin(alias: str, *, lock_timeout_seconds: float) -> None:
    """Prepare a transaction that has just begun: Read Committed, and no wait for a lock longer than that."""
    _execute(alias, "set_read_committed", {})
    # A timeout of 0 would wait for ever.
    _execute(alias, "set_lock_timeout", {"timeout_ms": str(max(1, int(lock_timeout_seconds * 1000)))})


def lock_target(alias: str, kind: str, id: int | str) -> dict[str, Any] | None:
    """Lock a job, a queue or a row of limits and return its facts; None when it is gone.

    What nobody has acted on, but for a job, gets its row first. Raise `django.db.OperationalError` when somebody else
    holds the row for longer than the bound.
    """
    if kind != "job":
        _execute(alias, f"ensure_{kind}", {"id": id})
    rows = _execute(alias, f"lock_{kind}", {"id": id if isinstance(id, str) else bigint(id)})
    if not rows:
        return None
    return {**rows[0], "effects": _effects(alias, rows[0])} if kind == "job" else rows[0]


def find_replay(alias: str, idempotency_key: str, params: Mapping[str, Any]) -> Replay | None:
    """Return the applied action of an idempotency key. Sent after the target is locked."""
    given = json.dumps(params, default=str)
    rows = _execute(alias, "find_replay", {"idempotency_key": idempotency_key, "params": given})
    return Replay(**rows[0]) if rows else None


def change(alias: str, statement: str, params: Mapping[str, Any]) -> Change | None:
    """Run a verb's statement on the locked target; None when one of its guards refused."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load(statement), params)
        row = cursor.fetchone()
    if row is None:
        return None
    changed = Change(*row)
    if changed.state == State.DEAD:
        enqueue_on_dead(partial(_rows, alias), [params["id"]])
    return changed


def is_spent_key(error: IntegrityError) -> bool:
    """Say whether an audit row was refused because its idempotency key had been applied meanwhile."""
    diag = getattr(error.__cause__, "diag", None)
    return getattr(diag, "constraint_name", None) == "pgqueue_action_once"


def is_unique_key(error: IntegrityError) -> bool:
    """Say whether a job was refused because another one of its unique key is there."""
    diag = getattr(error.__cause__, "diag", None)
    return getattr(diag, "constraint_name", None) in (
        "pgqueue_job_unique_until_finished",
        "pgqueue_job_unique_until_started",
    )


def audit(alias: str, row: AuditRow) -> int:
    """Write one audit row and return its id."""
    params = {field: getattr(row, field) for field in row.__slots__}
    params["params"] = json.dumps(row.params, default=str)
    params["facts"] = json.dumps(row.facts, default=str)
    written = _execute(alias, "audit", params)
    return int(written[0]["id"])


def _effects(alias: str, job: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Read the effects of a locked job, without their results."""
    if job["stage"] == Stage.NOT_CALLED:
        return []
    told = ("name", "stage", "remote_reference", "called_at", "replay_until", "deadline_seconds_left")
    rows = _execute(alias, "read_effects", {"id": job["id"]})
    return [{name: row[name] for name in told} for row in rows]


def _rows(alias: str, statement: str, params: Mapping[str, Any]) -> list[Any]:
    return [tuple(row.values()) for row in _execute(alias, statement, params)]


def _execute(alias: str, statement: str, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(load(statement), params)
        if cursor.description is None:
            return []
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
