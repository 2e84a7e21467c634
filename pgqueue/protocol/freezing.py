"""The statements of a bulk action, on Django's connection; each is its own transaction."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import QuerySet

from ..sql import load


@dataclass(frozen=True, slots=True)
class Item:
    """One row of a bulk action that is still to be acted on. `position` counts from 1."""

    job_id: int
    version_seen: int
    position: int


@dataclass(frozen=True, slots=True)
class Running:
    """What the rows of a started bulk action have in common."""

    verb: str
    reason: str
    ticket: str
    size: int
    spread_seconds: float


@dataclass(frozen=True, slots=True)
class Started:
    """A bulk action that runs, and who started it."""

    id: UUID
    verb: str
    started_by_id: str | None


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one row."""

    job_id: int
    outcome: str
    version_found: int | None
    state_found: str | None
    audit_id: int


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a bulk action about which the same decides. `state` None: their jobs are gone."""

    state: str | None
    queue: str | None
    task: str | None
    is_unchanged: bool | None
    unknown_effects: int | None
    stop_requested: bool
    is_purged: bool
    is_compensated: bool
    jobs: int
    with_reference: int
    oldest_seconds: float | None

    def known(self) -> dict[str, Any]:
        """Return what else than the state decides about them."""
        told = ("stop_requested", "is_purged", "is_compensated")
        return {"unknown_effects": self.unknown_effects or 0, **{name: getattr(self, name) for name in told}}


def freeze(
    alias: str, rows: QuerySet[Any], *, verb: str, actor: tuple[str | None, str], filter: str, cap: int
) -> UUID | None:
    """Write a bulk action over the jobs that a query of them finds, and return its id; None when it finds none.

    The one statement with a part that Django writes: to read 10,000 rows only to send them back would take longer
    than to write them, and meanwhile they would change.
    """
    chosen = rows.using(alias).values_list("pk", "version")[: cap + 1]
    try:
        query, found = chosen.query.get_compiler(using=alias).as_sql()
    except EmptyResultSet:
        return None
    # Django's placeholders have no names, and a statement has either kind.
    named = {f"found_{number}": value for number, value in enumerate(found)}
    names = iter(named)
    query = re.sub(r"%%|%s", lambda match: match[0] if match[0] == "%%" else f"%({next(names)})s", query)
    before, _, after = load("freeze_bulk").split("/* query */")
    params = {"verb": verb, "actor_id": actor[0], "actor_name": actor[1], "filter": filter, "cap": cap, **named}
    with connections[alias].cursor() as cursor:
        cursor.execute(f"{before}{query}{after}", params)
        row = cursor.fetchone()
    return None if row is None else UUID(str(row[0]))


def start(
    alias: str, id: UUID, *, actor: tuple[str | None, str], reason: str, ticket: str, spread_seconds: float
) -> bool:
    """Start a frozen one; False when it was started before."""
    by = {"started_by_id": actor[0], "started_by_name": actor[1]}
    params = {"id": id, **by, "reason": reason, "ticket": ticket, "spread_seconds": spread_seconds}
    return bool(_rows(alias, "start_bulk", params))


def stop(alias: str, id: UUID, *, by: str) -> bool:
    """Stop a running one; False when it does not run. `by` is empty where no person stops it."""
    return bool(_rows(alias, "stop_bulk", {"id": id, "stopped_by": by}))


def running(alias: str, *, limit: int) -> list[Started]:
    """Return those that run, the longest first."""
    return [Started(*row) for row in _rows(alias, "list_running_bulks", {"limit": limit})]


def finish(alias: str, id: UUID) -> bool:
    """End one without open rows; False when it has some, or does not run."""
    return bool(_rows(alias, "finish_bulk", {"id": id}))


def lock(alias: str, id: UUID) -> Running | None:
    """Lock one within the caller's transaction, after any other chunk of it; None when it is gone."""
    rows = _rows(alias, "lock_bulk", {"id": id})
    return Running(*rows[0]) if rows else None


def items(alias: str, id: UUID, *, limit: int) -> list[Item]:
    """Return rows that are still to be acted on; none once it was stopped."""
    return [Item(*row) for row in _rows(alias, "list_bulk_items", {"id": id, "limit": limit})]


def note(alias: str, id: UUID, results: Sequence[Result]) -> None:
    """Write what came of rows."""
    told = {result.job_id: {name: getattr(result, name) for name in Result.__slots__} for result in results}
    params = {"id": id, "job_ids": list(told), "results": json.dumps(told)}
    _rows(alias, "note_bulk_items", params)


def preview(alias: str, id: UUID) -> list[Group]:
    """Return what is still to be acted on, by what decides about it now; the largest group first."""
    return [Group(*row) for row in _rows(alias, "preview_bulk", {"id": id})]


def _rows(alias: str, statement: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(load(statement), params)
        return [] if cursor.description is None else cursor.fetchall()
