"""Worker processes that go on with bulk actions in the background."""

from __future__ import annotations

import pytest

from pgqueue import bulk
from pgqueue.models import OperatorAction
from tests.test_bulk import MINE, ROWS, noted, started, starter

from .harness import Database, Workers, until


@pytest.mark.django_db(transaction=True)
def test_a_worker_goes_on_with_a_set_as_soon_as_it_is_started(workers: Workers, database: Database) -> None:
    worker = workers.start("--queue", "elsewhere")
    until(lambda: database.value("SELECT count(*) FROM pgqueue_worker") == 1)
    started(starter(*MINE))
    bulk.hint()
    until(lambda: database.value("SELECT state FROM pgqueue_bulkaction") == "done", within_seconds=15)
    assert noted("applied") == ROWS
    assert worker.drain() == 0


@pytest.mark.django_db(transaction=True)
def test_a_set_that_was_running_before_any_worker_started_is_found(workers: Workers, database: Database) -> None:
    """Nobody was told: a heartbeat finds it. Two workers take turns, and each row is acted on once."""
    started(starter(*MINE))
    settings = {"LEASE_SECONDS": 3, "LISTEN": False}
    both = [workers.start("--queue", "elsewhere", settings=settings) for _ in range(2)]
    until(lambda: database.value("SELECT state FROM pgqueue_bulkaction") == "done")
    assert (noted("applied"), OperatorAction.objects.count()) == (ROWS, ROWS)
    assert [worker.drain() for worker in both] == [0, 0]
