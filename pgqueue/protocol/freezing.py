"""The statements of a bulk action, on Django's connection; each is its own transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import connections

from ..sql import load


@dataclass(frozen=True, slots=True)
class Item:
    """One row of a bulk action that is still to be acted on. `position` counts from 1."""

    job_id: int
    version_seen: int
    position: int


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a bulk action about which the same decides. `state` None: their jobs are gone."""

    state: str | None
    queue: str | None
    task: str | None
    is_unchanged: bool | None
    unknown_effects: int | None
    stop_requested: bool
    jobs: int
    with_reference: int
    oldest_seconds: float | None


def freeze(
    alias: str, *, verb: str, seen: Sequence[tuple[int, int]], actor: tuple[str | None, str], filter: str, capped: bool
) -> UUID:
    """Write a bulk action over (job, version) pairs and return its id."""
    params = {
        "verb": verb,
        "ids": [id for id, _ in seen],
        "versions": [version for _, version in seen],
        "actor_id": actor[0],
        "actor_name": actor[1],
        "filter": filter,
        "capped": capped,
    }
    return UUID(str(_rows(alias, "freeze_bulk", params)[0][0]))


def start(alias: str, id: UUID, *, reason: str, ticket: str, spread_seconds: float) -> bool:
    """Start a frozen one; False when it was started before."""
    params = {"id": id, "reason": reason, "ticket": ticket, "spread_seconds": spread_seconds}
    return bool(_rows(alias, "start_bulk", params))


def stop(alias: str, id: UUID) -> bool:
    """Stop a running one; False when it does not run."""
    return bool(_rows(alias, "stop_bulk", {"id": id}))


def finish(alias: str, id: UUID) -> bool:
    """End one without open rows; False when it has some, or does not run."""
    return bool(_rows(alias, "finish_bulk", {"id": id}))


def items(alias: str, id: UUID, *, limit: int) -> list[Item]:
    """Return rows that are still to be acted on; none once it was stopped."""
    return [Item(*row) for row in _rows(alias, "list_bulk_items", {"id": id, "limit": limit})]


def note(alias: str, id: UUID, job_id: int, result: Mapping[str, Any]) -> None:
    """Write what came of one row: outcome, version_found, state_found, audit_id."""
    _rows(alias, "note_bulk_item", {"id": id, "job_id": job_id, **result})


def preview(alias: str, id: UUID) -> list[Group]:
    """Return what is still to be acted on, by what decides about it now; the largest group first."""
    return [Group(*row) for row in _rows(alias, "preview_bulk", {"id": id})]


def _rows(alias: str, statement: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(load(statement), params)
        return [] if cursor.description is None else cursor.fetchall()
