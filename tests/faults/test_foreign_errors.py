"""Neither an exception that cannot be looked at nor a log handler that raises keeps a worker from ending."""

from __future__ import annotations

import json

import pytest

from tests.testapp import contract_tasks, fault_tasks

from .harness import Database, Journal, Workers, not_in_short, until

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

TASKS = (
    contract_tasks.fail_as_a_client,
    contract_tasks.fail_later_as_a_client,
    contract_tasks.fail_in_a_transaction_as_a_client,
)
MODULES = {"TASK_MODULES": ["tasks", "contract_tasks"]}
REFUSED = json.dumps(
    {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"refusing": {"class": "tests.testapp.log_handlers.RefusingHandler", "level": "WARNING"}},
        "root": {"handlers": ["refusing"], "level": "DEBUG"},
    }
)
LOGGINGS = pytest.mark.parametrize("logging", ["{}", REFUSED], ids=["standard error", "a handler that raises"])


@LOGGINGS
def test_a_worker_drains_after_errors_that_cannot_be_looked_at(
    workers: Workers, database: Database, journal: Journal, logging: str
) -> None:
    failing = [task.using(max_attempts=1).enqueue("api").id for task in TASKS]
    last = fault_tasks.pass_by.enqueue(str(journal)).id
    worker = workers.start("--concurrency", "1", settings=MODULES, PGQUEUE_TEST_LOGGING=logging)
    until(lambda: set(database.states()) == {"dead", "succeeded"}, what="every job gets its ending")
    for job_id in failing:
        assert (database.job(job_id)["state"], database.job(job_id)["attempts"]) == ("dead", 1)
    assert database.job(last)["state"] == "succeeded"
    assert worker.drain() == 0


@not_in_short
@LOGGINGS
def test_a_burst_ends_after_errors_that_cannot_be_looked_at(workers: Workers, database: Database, logging: str) -> None:
    for task in TASKS:
        task.using(max_attempts=1).enqueue("api")
    assert workers.start("--burst", settings=MODULES, PGQUEUE_TEST_LOGGING=logging).wait() == 0
    assert database.are_all("dead")
