"""Locks on business keys, on Django's connection, for as long as its transaction."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import connections
from django.db.transaction import TransactionManagementError

from ..sql import load


def lock_keys(alias: str, keys: Sequence[str]) -> None:
    """Lock keys until the transaction that is open ends, and wait for whoever holds one.

    Raise `TransactionManagementError` outside of a transaction: the locks would be gone at once.
    """
    connection = connections[alias]
    if not connection.in_atomic_block:
        raise TransactionManagementError(
            f"A lock on a key lasts as long as its transaction, and none is open on database {alias!r}: "
            f"open an atomic block, or declare the task with recovery='transactional'."
        )
    with connection.cursor() as cursor:
        cursor.execute(load("lock_keys"), {"keys": list(keys)})
