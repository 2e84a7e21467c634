"""The server refuses what the queue sends: nothing that the server does is the fault of a job, or ends a worker."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from tests.testapp import fault_tasks

from .harness import SHORT, Database, Journal, Workers, database_url, until

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

ROLE = f"pgqueue_faults_{os.getpid()}"


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    """A role that may use the queue and owns nothing: privileges can be taken from it."""
    for statement in (
        f"CREATE ROLE {ROLE}",
        f"GRANT USAGE ON SCHEMA public TO {ROLE}",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {ROLE}",
    ):
        database.connection.execute(statement.encode())
    yield ROLE
    database.connection.execute(f"DROP OWNED BY {ROLE}".encode())
    database.connection.execute(f"DROP ROLE {ROLE}".encode())


@contextlib.contextmanager
def refused(database: Database, fault: str, cure: str) -> Iterator[None]:
    database.connection.execute(fault.encode())
    try:
        yield
    finally:
        database.connection.execute(cure.encode())


RAISE = """
    CREATE FUNCTION test_raise() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not today'; END $$;
    CREATE TRIGGER test_raise BEFORE UPDATE ON pgqueue_job FOR EACH ROW EXECUTE FUNCTION test_raise()
"""
FAULTS = {
    "a revoked privilege": (
        f"REVOKE UPDATE ON pgqueue_job FROM {ROLE}",
        f"GRANT UPDATE ON pgqueue_job TO {ROLE}",
        "sqlstate=42501",
    ),
    "a table renamed": (
        "ALTER TABLE pgqueue_limit RENAME TO pgqueue_limit_away",
        "ALTER TABLE pgqueue_limit_away RENAME TO pgqueue_limit",
        "sqlstate=42P01",
    ),
    "a trigger that raises": (RAISE, "DROP FUNCTION test_raise CASCADE", "error=RaiseException sqlstate=P0001"),
    "a function revoked": (
        "REVOKE EXECUTE ON FUNCTION pgqueue_check_job FROM PUBLIC",
        "GRANT EXECUTE ON FUNCTION pgqueue_check_job TO PUBLIC",
        "sqlstate=42501",
    ),
}


@pytest.mark.parametrize("fault", ["a revoked privilege", "a trigger that raises"] if SHORT else FAULTS)
def test_a_worker_outlives_what_the_server_refuses_for_a_while_and_keeps_what_it_runs(
    workers: Workers, database: Database, journal: Journal, role: str, fault: str
) -> None:
    running = fault_tasks.wait_for.enqueue(str(journal)).id
    worker = workers.start("--concurrency", "3", url=database_url(options=f"-c role={role}")).until_started()
    until(journal.starts)
    fault, cure, told = FAULTS[fault]
    with refused(database, fault, cure):
        fault_tasks.nothing.enqueue()
        worker.until_says("database.failed", told)
    until(lambda: database.states().get("succeeded") == 1, what="it goes on")
    journal.open()
    until(lambda: database.are_all("succeeded"))
    assert (len(journal.starts()), database.job(running)["lease_losses"]) == (1, 0)
    assert worker.drain() == 0
    assert "Traceback" not in worker.log()


def test_a_migration_that_makes_prepared_plans_invalid_is_not_noticed(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """`cached plan must not change result type`: a claim returns the column, and is prepared by then."""
    worker = workers.start("--concurrency", "3").until_started()
    for number in range(4):
        fault_tasks.pass_by.enqueue(str(journal), f"before-{number}")
        until(lambda number=number: len(journal.starts()) > number)
    running = fault_tasks.wait_for.enqueue(str(journal)).id
    until(lambda: len(journal.starts()) == 5)
    column = "ALTER TABLE pgqueue_job ALTER COLUMN recovery TYPE"
    with refused(database, f"{column} varchar(200)", f"{column} text"):
        fault_tasks.pass_by.enqueue(str(journal), "after")
        until(lambda: "after" in journal.starts(), what="it goes on")
        journal.open()
        until(lambda: database.are_all("succeeded"))
        assert database.job(running)["lease_losses"] == 0
        assert worker.drain() == 0
    assert worker.says("database.failed", "sqlstate=0A000")
    assert "Traceback" not in worker.log()


def test_a_long_refusal_is_told_now_and_then(workers: Workers, database: Database) -> None:
    worker = workers.start().until_started()
    with refused(database, RAISE, "DROP FUNCTION test_raise CASCADE"):
        fault_tasks.nothing.enqueue()
        worker.until_says("database.failed", "failures=4 ")
    until(lambda: database.are_all("succeeded"))
    told = [line for line in worker.log().splitlines() if "database.failed" in line]
    assert [line.partition("failures=")[2].split()[0] for line in told][:3] == ["1", "2", "4"]
    assert worker.drain() == 0


def test_calls_that_come_back_to_a_read_only_server_need_no_person(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """As in a failover: the other side has answered, and the answers are recorded once the server takes writes."""
    ids = [int(fault_tasks.wait_and_call.enqueue(str(journal)).id) for _ in range(4)]
    worker = workers.start("--concurrency", "4", "--lease-seconds", "30").until_started()
    until(lambda: len(journal.starts()) == 4)
    with database.refusing("true"):
        journal.open()
        for id in ids:
            worker.until_says("effect.unwritten", f"job={id} effect=sms key=job:{id}:sms", "sqlstate=25006")
        worker.until_says("effect.unwritten", "failures=4 ")
    until(lambda: database.are_all("succeeded"))
    assert len(journal.starts()) == 4
    assert database.rows("SELECT DISTINCT stage FROM pgqueue_effect") == [("result_known",)]
    assert worker.drain() == 0


def test_one_ending_that_is_refused_keeps_neither_claims_nor_other_endings_waiting(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """A trigger of the site refuses one row with a code of the whole server, for longer than the job's lease."""
    refused = int(fault_tasks.pass_by.enqueue(str(journal), "refused").id)
    with database.refusing(f"NEW.id = {refused} AND NEW.state = 'succeeded'"):
        worker = workers.start("--concurrency", "1", "--lease-seconds", "4").until_started()
        worker.until_says("settle.unwritable", f"job={refused}", "sqlstate=25006")
        others = [int(fault_tasks.pass_by.enqueue(str(journal), f"other-{number}").id) for number in range(20)]
        until(lambda: all(database.job(id)["state"] == "succeeded" for id in others), within_seconds=10)
        until(
            lambda: database.value("SELECT lease_until < statement_timestamp() FROM pgqueue_job WHERE id = %s", refused)
        )
    until(lambda: database.are_all("succeeded"))
    assert (journal.starts().count("refused"), database.job(refused)["lease_losses"]) == (1, 0)
    assert len([line for line in worker.log().splitlines() if "settle.unwritable" in line]) < 10
    assert worker.drain() in (0, 75)
