"""A worker inside the test's own process: real claims, threads and endings on the test database.

The caller needs `django_db(transaction=True)`: the worker has connections of its own and sees what is committed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.backends.signals import connection_created
from django.test import override_settings

from pgqueue import registry
from pgqueue.compat import Task
from pgqueue.models import Job
from pgqueue.worker import surroundings
from pgqueue.worker.inbox import Inbox
from pgqueue.worker.options import Options
from pgqueue.worker.process import _run, run_worker

JOIN_SECONDS = 10

_DJANGOS = Task.__module__.removesuffix("base") + "backends"
IMMEDIATE = {"default": {"BACKEND": f"{_DJANGOS}.immediate.ImmediateBackend"}}
DUMMY = {"default": {"BACKEND": f"{_DJANGOS}.dummy.DummyBackend"}}
"""Settings for TASKS that name a backend of Django's own."""


def work(**given: Any) -> int:
    """Run a worker until nothing is due, and return its exit status. Its threads are over then."""
    with _without_listener():
        return run_worker(_options(given))


def work_together(workers: int, **given: Any) -> list[int]:
    """Run several workers at once, and return their exit statuses."""
    with _without_listener(), ThreadPoolExecutor(workers) as threads:
        registry.discover()
        return list(threads.map(lambda number: _run(_options(given), Inbox()), range(workers)))


def _options(given: dict[str, Any]) -> Options:
    usual = {"alias": "default", "concurrency": 2, "lease_seconds": 60, "poll_seconds": 60, "burst": True}
    return Options(**(usual | given))


@contextmanager
def _without_listener() -> Iterator[None]:
    """A listener's thread takes up to a second to end; those of the executor end by themselves."""
    with override_settings(PGQUEUE={"LISTEN": False, **settings.PGQUEUE}):
        yield
    for thread in threading.enumerate():
        if thread.name.startswith("pgqueue-"):
            thread.join(JOIN_SECONDS)


def work_through_retries(**given: Any) -> None:
    """Run workers until every job is over: what waits for its next attempt is made due."""
    work(**given)
    while Job.objects.filter(state="retrying").exists():
        Job.objects.filter(state="retrying").update(run_at="2000-01-01T00:00Z")
        work(**given)


def row(id: int | str) -> Job:
    """Return a job's row as it stands."""
    return Job.objects.get(pk=id)


@contextmanager
def as_in_a_web_process() -> Iterator[None]:
    """Give Django's connection as it is where no worker runs that notes how tasks use it."""
    connection.close()
    connection_created.disconnect(dispatch_uid="pgqueue.surroundings")
    try:
        yield
    finally:
        connection_created.connect(surroundings._note_connection, dispatch_uid="pgqueue.surroundings")
        connection.close()
