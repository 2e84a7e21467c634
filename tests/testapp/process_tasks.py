"""Tasks for the tests of supervised and recycled processes; workers find them by `TASK_MODULES`."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model

from pgqueue import task

from .fault_tasks import note

kept: list[bytearray] = []


@task
def hold_megabytes(megabytes: int) -> None:
    """Make the process grow: a megabyte of nothing but zeros would not be resident."""
    kept.append(bytearray(b"x" * (megabytes * 1024 * 1024)))


@task
def ask_the_database_and_note(directory: str, name: str) -> None:
    # The user model stands for any model that is not the queue's own.
    model: Any = get_user_model()
    model.objects.count()
    note(directory, "start", name)
