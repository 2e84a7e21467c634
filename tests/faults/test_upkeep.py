"""A worker starts, claims and ends whatever becomes of its upkeep."""

from __future__ import annotations

import pytest

from pgqueue.protocol.connecting import connect
from tests.testapp import fault_tasks

from .harness import Database, Journal, Workers, until

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

OLD_WINDOWS = """
    INSERT INTO pgqueue_window (job_id, created_at, ends_at, task, key)
    SELECT n, now(), now() - interval '30 days', 'task', 'key' || n FROM generate_series(1, 300000) AS n
"""
OLD_WORKER = """
    INSERT INTO pgqueue_worker (
        started_at, heartbeat_at, lease_seconds, pid, slots, draining, host, version, release, excluded_queues, tasks
    )
    VALUES (now(), now() - interval '30 days', 60, 1, 1, false, 'host', 1, '0', '[]', '[]')
"""


def test_a_worker_starts_beside_much_that_is_old_and_rows_that_are_held(
    workers: Workers, database: Database, journal: Journal
) -> None:
    database.connection.execute(OLD_WINDOWS)
    database.connection.execute(OLD_WORKER)
    old_id = database.value("SELECT max(id) FROM pgqueue_worker")
    with connect("default", role="holder") as holder, holder.transaction():
        holder.execute("SELECT FROM pgqueue_worker WHERE id = %s FOR UPDATE", [old_id])
        holder.execute("LOCK TABLE pgqueue_minutestat IN ACCESS EXCLUSIVE MODE")
        worker = workers.start(settings={"LISTEN": False}).until_started()
        fault_tasks.pass_by.enqueue(str(journal))
        until(lambda: database.are_all("succeeded"))
        until(lambda: database.value("SELECT count(*) FROM pgqueue_window") < 300_000, what="windows are pruned")
        assert worker.drain() == 0
    assert database.value("SELECT count(*) FROM pgqueue_worker WHERE id = %s", old_id) == 1
    assert not worker.says("Traceback")
