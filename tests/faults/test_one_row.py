"""What the server refuses row by row: one row costs nobody else anything, and all of them are not run in vain."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from pgqueue import enqueue_many
from tests.testapp import fault_tasks

from .harness import Database, Journal, Workers, holds_for, not_in_short, until
from .proxy import Proxy

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

SETTINGS = {"LEASE_SECONDS": 3}
CODES = ["57014", pytest.param("58030", marks=not_in_short), pytest.param("40001", marks=not_in_short)]
"""A trigger that takes too long, a block that cannot be read, a conflict: they look like a server in trouble."""


@contextlib.contextmanager
def refusing(
    database: Database, when: str, code: str = "P0001", *, table: str = "pgqueue_job", event: str = "UPDATE"
) -> Iterator[None]:
    database.connection.execute(
        f"""
        CREATE FUNCTION test_one() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'not this one' USING ERRCODE = '{code}';
        END
        $$;
        CREATE TRIGGER test_one BEFORE {event} ON {table} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION test_one()
        """.encode()
    )
    try:
        yield
    finally:
        database.connection.execute("DROP FUNCTION test_one CASCADE")


@pytest.mark.parametrize("code", CODES)
def test_one_ending_that_cannot_be_written_leaves_others_alone(
    workers: Workers, database: Database, journal: Journal, code: str
) -> None:
    bad = fault_tasks.wait_for.enqueue(str(journal)).id
    worker = workers.start(settings={"LEASE_SECONDS": 20}).until_started()
    until(journal.starts)
    with refusing(database, f"OLD.id = {bad} AND NEW.state = 'succeeded'", code):
        journal.open()
        until(lambda: worker.says("database.failed") or worker.says("settle.unwritable"))
        for number in range(20):
            fault_tasks.pass_by.enqueue(str(journal), f"job-{number}")
        until(lambda: database.states() == {"running": 1, "succeeded": 20}, within_seconds=12)
    until(lambda: database.are_all("succeeded"), within_seconds=15)
    assert database.job(bad)["lease_losses"] == 0
    assert len(journal.starts()) == 21
    assert worker.drain() == 0


@pytest.mark.parametrize("code", CODES)
def test_one_job_that_cannot_be_taken_over_leaves_others_alone(
    workers: Workers, database: Database, journal: Journal, code: str
) -> None:
    ids = [fault_tasks.wait_for.enqueue(str(journal), gate=f"gate-{number}").id for number in range(2)]
    lost = workers.start(settings=SETTINGS)
    until(lambda: len(journal.starts()) == 2)
    with refusing(database, f"OLD.id = {ids[0]}", code):
        lost.kill()
        worker = workers.start(settings=SETTINGS).until_started()
        worker.until_says("takeover.failed", f"job={ids[0]}", within_seconds=12)
        fault_tasks.pass_by.enqueue(str(journal), "other")
        until(lambda: "other" in journal.starts(), within_seconds=6)
        until(lambda: database.job(ids[1])["state"] != "running" or database.job(ids[1])["fence"] > 2)
        assert worker.log().count("takeover.failed") <= 6
    for number in range(2):
        journal.open(f"gate-{number}")
    until(lambda: database.are_all("succeeded"))
    assert worker.drain() == 0


def test_a_refused_ending_whose_row_is_locked_is_not_sent_again_and_again(
    workers: Workers, database: Database, journal: Journal, proxy: Proxy
) -> None:
    bad = fault_tasks.wait_for.enqueue(str(journal)).id
    worker = workers.start(settings={"LEASE_SECONDS": 30}, url=proxy.url()).until_started()
    until(journal.starts)
    with refusing(database, f"OLD.id = {bad} AND NEW.state = 'succeeded'"):
        journal.open()
        worker.until_says("settle.unwritable", "refusals=2")
        with database.connection.transaction():
            database.rows("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", int(bad))
            before = proxy.asked
            holds_for(2, lambda: proxy.asked - before < 100)
    until(lambda: database.are_all("succeeded"))
    assert worker.drain() == 0


def test_a_queue_whose_endings_are_all_refused_is_not_run_in_vain(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """No result can be stored, as after a REVOKE: what runs now would be lost, and run again."""
    names = [f"job-{number}" for number in range(100)]
    enqueue_many(fault_tasks.note_and_return.bind(str(journal), name) for name in names)
    with refusing(database, "true", table="pgqueue_jobresult", event="INSERT"):
        worker = workers.start("--concurrency", "4", settings={"LEASE_SECONDS": 30})
        worker.until_says("claims.braked")
        worker.until_says("settle.unwritable", "refusals=4")
        assert len(journal.starts()) < 50
    until(lambda: database.are_all("succeeded"), within_seconds=25)
    assert worker.says("claims.resumed")
    assert sorted(journal.starts()) == sorted(names)
    assert database.rows("SELECT DISTINCT attempts, lease_losses FROM pgqueue_job") == [(1, 0)]
    assert worker.drain() == 0


def test_a_call_that_can_never_be_announced_is_not_waited_for_for_ever(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """The heartbeat gets through and keeps the job: the run itself must end, and with it the process."""
    job_id = fault_tasks.wait_and_call.enqueue(str(journal)).id
    with refusing(database, "true", table="pgqueue_effect", event="INSERT"):
        worker = workers.start(settings={"LEASE_SECONDS": 2})
        worker.until_says("effect.unwritten")
        assert worker.drain(within_seconds=15) == 0
    job = database.job(job_id)
    assert (job["state"], job["attempts"], job["lease_losses"]) == ("retrying", 1, 0)
    assert journal.starts() == [], "nothing was called"
