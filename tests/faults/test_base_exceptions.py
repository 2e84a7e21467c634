"""What a task raises ends its attempt and nothing else (field case G07), whatever its class and kind."""

from __future__ import annotations

import pytest

from tests.testapp import fault_tasks

from .harness import Database, Journal, Workers, until

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_worker_outlives_every_exception(workers: Workers, database: Database, journal: Journal) -> None:
    """One thread, so that it is the same that serves the next job."""
    wicked = {}
    for name in fault_tasks.WICKED:
        wicked[fault_tasks.raise_wicked.enqueue(name).id] = name
        wicked[fault_tasks.raise_wicked_async.enqueue(name).id] = name
    interrupted = fault_tasks.end_the_thread_after_return.enqueue().id
    last = fault_tasks.pass_by.enqueue(str(journal)).id
    worker = workers.start("--concurrency", "1").until_started()
    until(lambda: set(database.states()) == {"dead", "succeeded"}, what="every job gets its ending")
    for job_id, name in wicked.items():
        job = database.job(job_id)
        assert (job["state"], job["attempts"]) == ("dead", 1), job
        assert name in job["last_error_class"], job
    # A thread that ends on its way back would leave a job behind that is renewed for ever (field case A08).
    assert database.job(interrupted)["state"] == "succeeded"
    assert worker.says("thread.interrupted")
    assert database.job(last)["state"] == "succeeded"
    assert worker.drain() == 0
