"""The answer to a COMMIT is lost: what the server did stands, what it did not is done again, nothing twice."""

from __future__ import annotations

import pytest

from pgqueue import enqueue_many
from tests.testapp import fault_tasks

from .harness import SHORT, Database, Journal, Workers, until
from .proxy import CLAIM, ENDING, ENDING_ALONE, Fault, Proxy

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

NAMES = [f"job-{number}" for number in range(20)]


def enqueue_all(journal: Journal) -> None:
    enqueue_many(fault_tasks.pass_by.bind(str(journal), name) for name in NAMES)


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
def test_a_claim_that_nobody_heard_is_released_and_run_once(
    workers: Workers, database: Database, journal: Journal, proxy: Proxy, fault: Fault
) -> None:
    enqueue_all(journal)
    plan = proxy.plan(CLAIM, fault)
    worker = workers.start(url=proxy.url())
    assert plan.happened.wait(60)
    until(lambda: database.are_all("succeeded"), what="all succeed, long before the lease of 60 s")
    assert sorted(journal.starts()) == sorted(NAMES)
    assert database.rows("SELECT DISTINCT attempts, lease_losses FROM pgqueue_job") == [(1, 0)]
    assert worker.says("claim.unheard") == (fault is Fault.CUT_AFTER)
    assert worker.drain() == 0


@pytest.mark.parametrize("fault", [Fault.CUT_BEFORE, Fault.CUT_AFTER])
def test_endings_are_not_written_twice_and_not_called_lost(
    workers: Workers, database: Database, journal: Journal, proxy: Proxy, fault: Fault
) -> None:
    enqueue_all(journal)
    plan = proxy.plan(ENDING, fault)
    worker = workers.start(url=proxy.url())
    assert plan.happened.wait(60)
    until(lambda: database.are_all("succeeded"))
    assert worker.drain() == 0
    assert sorted(journal.starts()) == sorted(NAMES)
    # What was claimed with the endings was given back, unheard: two changes more.
    assert set(database.rows("SELECT DISTINCT attempts, version FROM pgqueue_job")) <= {(1, 3), (1, 5)}
    assert database.value("SELECT count(*) FROM pgqueue_attempt") == 0
    assert worker.says("database.failed")
    assert not worker.says("ending.refused")


def test_a_failure_whose_answer_was_lost_is_charged_once(
    workers: Workers, database: Database, journal: Journal, proxy: Proxy
) -> None:
    job_id = fault_tasks.raise_wicked.using(max_attempts=8).enqueue("MemoryError").id
    plan = proxy.plan(ENDING, Fault.CUT_AFTER)
    worker = workers.start(url=proxy.url())
    assert plan.happened.wait(60)
    worker.until_says("database.failed")
    assert worker.drain() == 0
    assert database.job(job_id)["attempts"] == 1
    assert database.value("SELECT count(*) FROM pgqueue_attempt") == 1
    assert not worker.says("ending.refused")


@pytest.mark.parametrize("marker", [ENDING] if SHORT else [CLAIM, ENDING])
def test_a_silent_server_is_given_up(
    workers: Workers, database: Database, journal: Journal, proxy: Proxy, marker: bytes
) -> None:
    """Half-open: the server committed, and neither an answer nor an error ever comes."""
    enqueue_all(journal)
    plan = proxy.plan(marker, Fault.SILENCE)
    workers.start(url=proxy.url())
    assert plan.happened.wait(60)
    until(lambda: database.are_all("succeeded"), within_seconds=40)
    assert sorted(journal.starts()) == sorted(NAMES)


def test_a_transactional_body_whose_commit_gets_lost_holds_up_neither_its_job_nor_its_worker(
    workers: Workers, database: Database, journal: Journal, proxy: Proxy
) -> None:
    """Half-open: its COMMIT never arrives, and nothing ever closes Django's connection, which waits for its answer."""
    job_id = fault_tasks.write_row.enqueue(str(journal)).id
    plan = proxy.plan(ENDING_ALONE, Fault.HOLD)
    short = {"LEASE_SECONDS": 3}
    worker = workers.start(settings=short, url=proxy.url())
    assert plan.happened.wait(60)
    workers.start(settings=short).until_started()
    until(lambda: database.are_all("succeeded"), within_seconds=15, what=f"taken over: {database.job(job_id)}")
    worker.until_says("commit.unanswered", within_seconds=10)
    assert worker.drain(within_seconds=15) == 0
    assert database.value("SELECT count(*) FROM pgqueue_queue WHERE name LIKE 'row:%%'") == 1
    job = database.job(job_id)
    assert (job["attempts"], job["lease_losses"]) == (1, 1)
