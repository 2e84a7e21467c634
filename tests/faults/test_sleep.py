"""An idle worker sleeps, and wakes for a due row, an expiry and a NOTIFY. Delays are measured and printed."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from tests.testapp import fault_tasks

from .harness import SHORT, Database, Journal, Workers, not_in_short, until
from .proxy import Proxy

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

A_MINUTE = ("--poll-seconds", "60")
DELAY = "SELECT extract(epoch FROM started_at - {since})::float8 FROM pgqueue_job ORDER BY 1"


def until_asleep(database: Database) -> None:
    """Wait until the worker has listened and looked once more: from here on it sleeps for long."""
    until(lambda: "pgqueue listener" in database.backends().values())
    time.sleep(1)


def delays(database: Database, since: str) -> list[float]:
    return [delay for (delay,) in database.rows(DELAY.format(since=since))]


def test_it_wakes_for_a_row_that_becomes_due(workers: Workers, database: Database, journal: Journal) -> None:
    worker = workers.start(*A_MINUTE).until_started()
    until_asleep(database)
    fault_tasks.pass_by.using(run_after=timezone.now() + timedelta(seconds=3)).enqueue(str(journal))
    until(lambda: database.are_all("succeeded"), within_seconds=20)
    (delay,) = delays(database, "run_at")
    print(f"started {delay:.3f} s after it was due")
    assert -0.01 < delay < 2
    assert worker.drain() == 0


def test_it_wakes_for_a_queue_of_any_name(workers: Workers, database: Database, journal: Journal) -> None:
    worker = workers.start(*A_MINUTE).until_started()
    until_asleep(database)
    fault_tasks.pass_by.using(queue_name="bulk:").enqueue(str(journal))
    until(lambda: database.are_all("succeeded"), within_seconds=20)
    assert worker.drain() == 0
    assert not worker.says("listener.deaf")


@not_in_short
def test_it_wakes_for_a_lease_that_runs_out(workers: Workers, database: Database, journal: Journal) -> None:
    victim = workers.start(settings={"LEASE_SECONDS": 6})
    fault_tasks.wait_for.enqueue(str(journal))
    until(journal.starts)
    worker = workers.start(*A_MINUTE).until_started()
    victim.kill()
    journal.open()
    expiry = database.value("SELECT lease_until FROM pgqueue_job")
    until(lambda: database.are_all("succeeded"), within_seconds=30)
    delay = database.value("SELECT extract(epoch FROM ended_at - %s)::float8 FROM pgqueue_attempt ORDER BY id", expiry)
    print(f"taken over {delay:.3f} s after the lease ran out")
    assert 0 <= delay < 2
    assert worker.drain() == 0


def test_it_wakes_for_a_notify(workers: Workers, database: Database, journal: Journal) -> None:
    worker = workers.start(*A_MINUTE).until_started()
    until_asleep(database)
    for number in range(10):
        fault_tasks.pass_by.enqueue(str(journal), f"job-{number}")
        until(lambda n=number: database.states().get("succeeded") == n + 1, within_seconds=20)
    found = delays(database, "created_at")
    print(f"started after {found[0] * 1000:.1f} to {found[-1] * 1000:.1f} ms, median {found[5] * 1000:.1f} ms")
    assert found[5] < 0.5
    assert worker.drain() == 0


def test_without_listen_it_polls(workers: Workers, database: Database, journal: Journal) -> None:
    worker = workers.start(*A_MINUTE, settings={"LISTEN": False}).until_started()
    until(lambda: database.backends("worker"))
    for number in range(5):
        fault_tasks.pass_by.enqueue(str(journal), f"job-{number}")
        until(lambda n=number: database.states().get("succeeded") == n + 1, within_seconds=20)
    found = delays(database, "created_at")
    print(f"started after {found[0] * 1000:.0f} to {found[-1] * 1000:.0f} ms")
    assert found[2] < 1.0
    assert not database.backends("listener")
    assert worker.drain() == 0


def test_an_idle_worker_says_little(workers: Workers, database: Database, proxy: Proxy) -> None:
    worker = workers.start(url=proxy.url()).until_started()
    until_asleep(database)
    seconds = 15 if SHORT else 60
    before = proxy.asked
    time.sleep(seconds)
    per_minute = (proxy.asked - before) * 60 / seconds
    print(f"{per_minute:.0f} round trips a minute, those of a transaction counted one by one")
    # In a shorter time, one heartbeat more counts for a lot.
    assert per_minute <= (45 if SHORT else 30)
    assert worker.drain() == 0
