"""What of the queue's schema is there, and the creation of what no model describes."""

from __future__ import annotations

from django.db import connections, transaction

from ..beyond_models import PARTS
from ..sql import load


def has_tables(alias: str) -> bool:
    """Return whether the queue's tables are in a database."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("has_tables"))
        return bool(cursor.fetchone()[0])


def missing_parts(alias: str) -> tuple[str, ...]:
    """Return which of `beyond_models.PARTS` are missing beside the tables; none where the tables are missing too."""
    with connections[alias].cursor() as cursor:
        cursor.execute(load("find_missing_parts"))
        return tuple(name for (name,) in cursor.fetchall())


def create_missing_parts(alias: str) -> None:
    """Create what is missing beside the tables."""
    missing = missing_parts(alias)
    if not missing:
        return
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        for statement in (text for part in PARTS if part.name in missing for text in part.create):
            cursor.execute(statement)
