"""The statements of an operator's action, on Django's connection; `operations` owns the transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from django.db import IntegrityError, connections

from ..sql import load
from ..states import Stage, State
from .following import compensate as enqueue_compensation
from .following import compensation_of, enqueue_on_dead
from .tolerating import tolerant


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

    A queue or a limit that nobody has acted on gets its row first. Raise `django.db.OperationalError` when somebody
    else holds the row for longer than the bound.
    """
    if kind in ("queue", "limit"):
        _execute(alias, f"ensure_{kind}", {"id": id})
    with tolerant(alias):
        rows = _execute(alias, f"lock_{kind}", {"id": id if isinstance(id, str) else bigint(id)})
    if not rows:
        return None
    if kind != "job":
        return rows[0]
    facts = {**rows[0], "effects": _effects(alias, rows)[rows[0]["id"]]}
    if facts["state"] == State.UNKNOWN:
        facts["compensation"] = compensation_of(facts["task"])
        facts["late_answers"] = _execute(alias, "list_late_answers", {"id": facts["id"]})
    return facts


def lock_jobs(alias: str, ids: Sequence[int]) -> tuple[dict[int, dict[str, Any]], set[int]]:
    """Lock many jobs without a wait; return the facts of those locked, and which others somebody holds.

    What is in neither is gone.
    """
    with tolerant(alias):
        rows = _execute(alias, "lock_jobs", {"ids": list(ids)})
    effects = _effects(alias, rows)
    locked = {row["id"]: {**row, "effects": effects[row["id"]]} for row in rows}
    left = [id for id in ids if id not in locked]
    held = {row["id"] for row in _execute(alias, "find_jobs", {"ids": left})} if left else set()
    return locked, held


def find_replays(alias: str, asked: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Replay]:
    """Return the applied actions of idempotency keys, by key. Sent after the targets are locked.

    `asked` are pairs of a key and the params that come with it.
    """
    params = {
        "idempotency_key": [key for key, _ in asked],
        "params": [json.dumps(given, default=str) for _, given in asked],
    }
    rows = _execute(alias, "find_replay", params) if asked else []
    return {row.pop("idempotency_key"): Replay(**row) for row in rows}


def change(alias: str, statement: str, params: Mapping[str, Any]) -> Change | None:
    """Run a verb's statement on the locked target; None when one of its guards refused."""
    rows = _rows(alias, statement, params)
    return _changed(alias, {params["id"]: Change(*rows[0])}).get(params["id"]) if rows else None


def change_many(alias: str, statement: str, params: Sequence[Mapping[str, Any]]) -> dict[int | str, Change]:
    """Run a statement that takes many on locked jobs; return what it changed, by id. `params` are those of each."""
    together = {name: [each[name] for each in params] for name in params[0]} if params else {}
    rows = _rows(alias, statement, together) if params else []
    return _changed(alias, {row[0]: Change(*row[1:]) for row in rows})


def _changed(alias: str, changes: dict[Any, Change]) -> dict[Any, Change]:
    enqueue_on_dead(partial(_rows, alias), [id for id, change in changes.items() if change.state == State.DEAD])
    return changes


def compensate(alias: str, job: Mapping[str, Any], name: str, reference: str) -> tuple[int, str]:
    """Enqueue what undoes an effect of a locked job; return the id of that job, and its queue."""
    effect = next(effect for effect in job["effects"] if effect["name"] == name)
    return enqueue_compensation(partial(_rows, alias), job, effect, reference=reference)


def is_spent_key(error: IntegrityError) -> bool:
    """Say whether a row was refused because its idempotency key had been applied, or asked with, meanwhile."""
    diag = getattr(error.__cause__, "diag", None)
    return getattr(diag, "constraint_name", None) in ("pgqueue_action_once", "pgqueue_approval_once")


def is_unique_key(error: IntegrityError) -> bool:
    """Say whether a job was refused because another one of its unique key is there."""
    diag = getattr(error.__cause__, "diag", None)
    return getattr(diag, "constraint_name", None) in (
        "pgqueue_job_unique_until_finished",
        "pgqueue_job_unique_until_started",
    )


def audit(alias: str, rows: Sequence[AuditRow]) -> list[int]:
    """Write audit rows of different targets and return their ids."""
    told = json.dumps([{field: getattr(row, field) for field in AuditRow.__slots__} for row in rows], default=str)
    ids = {row["target_id"]: int(row["id"]) for row in _execute(alias, "audit", {"rows": told})}
    return [ids[row.target_id] for row in rows]


def _effects(alias: str, jobs: Sequence[Mapping[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Read the effects of locked jobs, without their results."""
    found: dict[int, list[dict[str, Any]]] = {job["id"]: [] for job in jobs}
    begun = [job["id"] for job in jobs if job["stage"] != Stage.NOT_CALLED]
    for row in _execute(alias, "list_effects", {"ids": begun}) if begun else ():
        found[row.pop("job_id")].append(row)
    return found


def _rows(alias: str, statement: str, params: Mapping[str, Any]) -> list[Any]:
    return [tuple(row.values()) for row in _execute(alias, statement, params)]


def _execute(alias: str, statement: str, params: Mapping[str, Any]) -> list[dict[str, Any]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(load(statement), params)
        if cursor.description is None:
            return []
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
