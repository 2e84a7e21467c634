"""A worker whose clock is hours off changes nothing (field case B15): time is the database's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.testapp import fault_tasks
from tests.testapp.tasks import retry_after

from .harness import SHORT, Database, Journal, Workers, holds_for, until

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

SKEW = str(Path(__file__).parent / "skew")
TEN_HOURS = 36_000
LEASE_SECONDS = 6


@pytest.mark.parametrize("offset", [TEN_HOURS, -TEN_HOURS] if SHORT else [0, TEN_HOURS, -TEN_HOURS])
def test_a_wrong_clock_changes_nothing(workers: Workers, database: Database, journal: Journal, offset: int) -> None:
    other = fault_tasks.wait_for.enqueue(str(journal), "other").id
    right = workers.start("--exclude-queue", "wrong", settings={"LEASE_SECONDS": LEASE_SECONDS}).until_started()
    until(journal.starts)
    wrong = workers.start(
        "--queue",
        "wrong",
        settings={"LEASE_SECONDS": LEASE_SECONDS},
        PYTHONPATH=SKEW,
        PGQUEUE_TEST_CLOCK_OFFSET=str(offset),
    ).until_started()
    running = fault_tasks.wait_for.using(queue_name="wrong").enqueue(str(journal), "running").id
    told = fault_tasks.tell_time.using(queue_name="wrong").enqueue().id
    retried = retry_after.using(queue_name="wrong").enqueue(60).id
    until(lambda: database.job(retried)["state"] == "retrying" and database.job(told)["state"] == "succeeded")
    until(lambda: len(journal.starts()) == 2)

    said = json.loads(database.value("SELECT value::text FROM pgqueue_jobresult WHERE job_id = %s", int(told)))
    now = database.value("SELECT extract(epoch FROM statement_timestamp())")
    assert said - float(now) == pytest.approx(offset, abs=30), "the clock is wrong indeed"
    assert seconds_from_now(database, retried, "run_at") == pytest.approx(60, abs=20)
    assert LEASE_SECONDS / 3 < seconds_from_now(database, running, "lease_until") <= LEASE_SECONDS
    for instant in ("started_at", "finished_at", "claimed_at"):
        assert -20 < seconds_from_now(database, told, instant) <= 0.5, instant

    both = {int(other), int(running)}
    holds_for(
        1.5 * LEASE_SECONDS,
        lambda: both == {row[0] for row in database.rows("SELECT id FROM pgqueue_job WHERE state = 'running'")},
        what="neither takes over what the other holds",
    )
    journal.open()
    until(lambda: database.states() == {"succeeded": 3, "retrying": 1})
    assert database.value("SELECT max(lease_losses) FROM pgqueue_job") == 0
    assert sorted(journal.starts()) == ["other", "running"]
    assert [right.drain(), wrong.drain()] == [0, 0]


def seconds_from_now(database: Database, job_id: str, instant: str) -> float:
    moment: Any = database.job(job_id)[instant]
    return float(database.value("SELECT extract(epoch FROM %s - statement_timestamp())", moment))
