"""`manage.py pgqueue_worker`: `runworker` under a name that no other app has."""

from __future__ import annotations

from .runworker import Command as RunWorker


class Command(RunWorker):
    """The same command."""
