"""The statements of requests for approval, on Django's connection; whoever acts owns the transaction."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import connections

from ..sql import load
from .operating import Replay

BULK = "bulk"
"""Kind of a target that is a whole bulk action; requests for approval alone have it."""


def ask(alias: str, asked: Mapping[str, Any]) -> int:
    """Write down what is asked for and return the number of the request."""
    params = {**asked, "params": json.dumps(asked["params"], default=str)}
    return int(_rows(alias, "ask_for_approval", params)[0][0])


def find(alias: str, idempotency_key: str | None, params: Mapping[str, Any]) -> tuple[int, Replay] | None:
    """Return the number of the request that was asked with a key, and what it was about. After the target's lock."""
    if idempotency_key is None:
        return None
    given = {"idempotency_key": idempotency_key, "params": json.dumps(params, default=str)}
    for id, verb, kind, target, created_at, same_params in _rows(alias, "find_request", given):
        return id, Replay(id, verb, kind, target, 0, created_at, same_params)
    return None


def find_waiting(alias: str, kind: str, target: str) -> int | None:
    """Return the number of the request that waits about a target; None when none does."""
    rows = _rows(alias, "find_waiting_request", {"target_kind": kind, "target_id": target})
    return int(rows[0][0]) if rows else None


def of_bulk(alias: str, id: UUID, verb: str) -> str | None:
    """Return who approved a bulk action of a verb; None when nobody has."""
    rows = _rows(alias, "find_approval", {"bulk_id": str(id), "verb": verb})
    return str(rows[0][0]) if rows else None


def lock_frozen(alias: str, id: str) -> dict[str, Any] | None:
    """Lock a bulk action and return its facts; None when it is gone."""
    rows = _rows(alias, "lock_frozen", {"id": id})
    return dict(zip(("state", "verb", "size", "filter"), rows[0], strict=True)) if rows else None


def _rows(alias: str, statement: str, params: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    with connections[alias].cursor() as cursor:
        cursor.execute(load(statement), params)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows
