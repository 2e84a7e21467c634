"""Connections are lost: leases, listening and the process itself survive it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connections

from demo_project.postgres import start as start_server
from pgqueue import enqueue_many
from pgqueue.protocol.listening import wake
from pgqueue.worker import listener as listening
from pgqueue.worker.listener import Listener
from tests.testapp import fault_tasks

from .harness import PROJECT, SHORT, Database, Journal, Workers, holds_for, until
from .proxy import Proxy

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.faults
def test_a_lease_outlives_every_connection_of_its_worker(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """Field case B13: ownership is a row, no session."""
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    first = workers.start(settings={"LEASE_SECONDS": 9}).until_started()
    until(journal.starts)
    until(lambda: "pgqueue listener" in database.backends().values())
    of_first = database.backends()
    second = workers.start(settings={"LEASE_SECONDS": 9}).until_started()
    database.terminate(of_first)
    until(lambda: not of_first.keys() & database.backends().keys())
    holds_for(3, lambda: len(journal.starts()) == 1, what="no second start before the lease runs out")
    journal.open()
    until(lambda: database.are_all("succeeded"))
    job = database.job(job_id)
    assert (job["settled_by"], job["lease_losses"]) == (first.worker_id(), 0)
    assert len(journal.starts()) == 1
    assert [first.drain(), second.drain()] == [0, 0]


@pytest.mark.faults
def test_a_sleeping_worker_connects_again(workers: Workers, database: Database, journal: Journal) -> None:
    """Field case C14."""
    worker = workers.start().until_started()
    until(lambda: "pgqueue listener" in database.backends().values())
    for round_number in range(3):
        before = database.backends()
        database.terminate(before)
        until(lambda before=before: not before.keys() & database.backends().keys())
        fault_tasks.pass_by.enqueue(str(journal), f"round-{round_number}")
        until(lambda n=round_number: len(journal.starts()) > n, what="the worker finds the job")
    until(lambda: database.are_all("succeeded"))
    assert worker.drain() == 0


@pytest.mark.faults
def test_a_new_listener_listens(workers: Workers, database: Database, journal: Journal) -> None:
    """Field case C06: seen by its backend, and by how soon a job starts though the poll is a minute away."""
    worker = workers.start("--poll-seconds", "60").until_started()
    before = until(lambda: database.backends("listener"))
    database.terminate(before)
    after = until(lambda: database.backends("listener").keys() - before.keys())
    until(lambda: database.value("SELECT query FROM pg_stat_activity WHERE pid = %s", *after).startswith("LISTEN "))
    worker.until_says("listener.failed")
    # The worker looks once when its listener is back; only then is the sleep a minute long.
    time.sleep(1)
    began = time.monotonic()
    fault_tasks.pass_by.enqueue(str(journal))
    until(journal.starts, within_seconds=20)
    print(f"heard after {time.monotonic() - began:.3f} s")
    assert worker.drain() == 0


@pytest.mark.faults
def test_a_half_open_listener_is_noticed_and_made_again(
    database: Database, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A middlebox has forgotten the connection, answers keepalives, and passes nothing on."""
    monkeypatch.setattr(listening, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(listening, "ANSWER_SECONDS", 0.5)
    behind = {**connections["default"].settings_dict, "HOST": "", "PORT": "", "OPTIONS": {"host": str(proxy.directory)}}
    monkeypatch.setitem(connections.settings, "behind", behind)
    woken = threading.Event()
    listener = Listener("behind", on_wake=woken.set)
    listener.start()
    try:
        until(lambda: listener.is_listening)
        (lost,) = database.backends("listener")
        woken.clear()
        assert proxy.lose("listener") == 1
        assert woken.wait(30), "the worker is told to poll"
        until(lambda: listener.is_listening and database.backends("listener").keys() - {lost})
        assert "listener.failed error=OperationalError" in caplog.text
        assert "listener.deaf" not in caplog.text
        woken.clear()
        wake(database.connection, ["default"])
        assert woken.wait(30)
    finally:
        listener.stop()
    assert not listener.is_alive()


@pytest.mark.faults
@pytest.mark.case("C02")
@pytest.mark.case("C09")
def test_what_works_beside_the_jobs_comes_back_once_and_stays(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """Only heartbeat and listener are cut. The lease is kept, and nothing is torn down that was made again."""
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    worker = workers.start("--poll-seconds", "60", settings={"LEASE_SECONDS": 6}).until_started()
    until(journal.starts)
    for role in ("heartbeat", "listener"):
        before = until(lambda role=role: database.backends(role))
        database.terminate(before)
        until(lambda role=role, before=before: database.backends(role).keys() - before.keys())
    until(lambda: worker.says("listener.failed") and worker.says("heartbeat.failed"))
    made_again = database.backends()
    holds_for(3 if SHORT else 12, lambda: made_again.keys() >= database.backends("listener").keys(), what="it stays")
    assert len(database.backends("listener")) == 1
    fault_tasks.pass_by.enqueue(str(journal), "heard")
    until(lambda: "heard" in journal.starts(), within_seconds=10)
    journal.open()
    until(lambda: database.are_all("succeeded"))
    assert database.job(job_id)["lease_losses"] == 0
    assert worker.drain() == 0


@pytest.mark.faults
@pytest.mark.case("C05")
def test_a_listener_listens_again_after_every_outage(
    workers: Workers, database: Database, journal: Journal, proxy: Proxy
) -> None:
    """Each time it is refused more than once first, as by a server that is still starting."""
    worker = workers.start("--poll-seconds", "60", url=proxy.url(), settings={"LEASE_SECONDS": 120}).until_started()
    for outage in range(1 if SHORT else 3):
        until(lambda: database.backends("listener"))
        failed = worker.log().count("listener.failed")
        proxy.refuse()
        proxy.reset_all()
        until(lambda failed=failed: worker.log().count("listener.failed") >= failed + 3)
        proxy.refuse(False)
        until(lambda: database.backends("listener"))
        time.sleep(1)  # The worker looks once when its listener is back; only then is the sleep a minute long.
        began = time.monotonic()
        fault_tasks.pass_by.enqueue(str(journal), f"outage-{outage}")
        until(lambda outage=outage: f"outage-{outage}" in journal.starts(), within_seconds=20)
        print(f"heard after {time.monotonic() - began:.3f} s")
    assert worker.drain() == 0


@pytest.mark.faults
@pytest.mark.case("C15")
def test_endings_that_cannot_be_written_for_a_lease_are_dropped_and_the_job_runs_elsewhere(
    workers: Workers, database: Database, journal: Journal
) -> None:
    """As on a node that has become read-only under one worker: neither its endings nor its heartbeats are written."""
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    first = workers.start("--concurrency", "1", settings={"LEASE_SECONDS": 3}).until_started()
    until(journal.starts)
    with database.refusing(f"OLD.worker_id = {first.worker_id()} AND (NEW.worker_id IS NOT NULL OR {ENDED})"):
        journal.open()
        second = workers.start(settings={"LEASE_SECONDS": 3}).until_started()
        until(lambda: database.are_all("succeeded"), what="another worker runs it")
        assert first.wait(within_seconds=30) == 75
    job = database.job(job_id)
    assert (job["lease_losses"], job["attempts"]) == (1, 1)
    assert database.settled_by(job_id) == second.worker_id()
    assert second.drain() == 0


ENDED = "NEW.state = 'succeeded'"


@pytest.mark.faults
@pytest.mark.case("C21")
def test_a_retry_of_a_worker_that_leaves_wakes_another(workers: Workers, database: Database, journal: Journal) -> None:
    """Due at once, and the other one would sleep for a minute."""
    fault_tasks.retry_at_once.enqueue(str(journal))
    leaving = workers.start("--poll-seconds", "60").until_started()
    until(journal.starts)
    other = workers.start("--poll-seconds", "60").until_started()
    until(lambda: len(database.backends("listener")) == 2)
    time.sleep(1)  # It looks once when it listens.
    leaving.send(signal.SIGTERM)
    leaving.until_says("worker.draining")
    began = time.monotonic()
    journal.open()
    until(lambda: "attempt-2" in journal.starts(), within_seconds=20)
    print(f"started {time.monotonic() - began:.3f} s after the end of the first attempt")
    assert time.monotonic() - began < 10
    assert [leaving.wait(), other.drain()] == [0, 0]
    assert database.are_all("succeeded")


@pytest.mark.faults
def test_nothing_spins_while_the_server_is_away(workers: Workers, database: Database, proxy: Proxy) -> None:
    """Field case C08: counted by the connections tried and the processor time used."""
    worker = workers.start(url=proxy.url()).until_started()
    until(lambda: "pgqueue listener" in database.backends().values())
    proxy.refuse()
    proxy.reset_all()
    worker.until_says("listener.failed")
    tried, used, seconds = proxy.accepted, cpu_seconds(worker.pid), 4.0
    time.sleep(seconds)
    rate = (proxy.accepted - tried) / seconds
    share = (cpu_seconds(worker.pid) - used) / seconds
    print(f"{rate:.1f} connections a second, {share:.1%} of a processor")
    assert rate < 10
    assert share < 0.3
    proxy.refuse(False)
    until(lambda: "pgqueue worker" in database.backends().values(), what="it comes back")
    assert worker.drain() == 0


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.faults
def test_failed_reconnects_leave_no_connection_behind(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case C11: LISTEN itself fails, after the connection stands."""
    failed = 0
    heard = threading.Event()

    class Failing(listening.Subscription):
        def __init__(self, *args: Any, **options: Any) -> None:
            nonlocal failed
            if failed < 50:
                failed += 1
                raise psycopg.OperationalError("on purpose")
            super().__init__(*args, **options)

    monkeypatch.setattr(listening, "Subscription", Failing)
    monkeypatch.setattr(listening, "delay_seconds", lambda failures, **bounds: 0.005)
    listener = Listener("default", on_wake=heard.set)
    descriptors = len(os.listdir("/proc/self/fd"))
    listener.start()
    assert heard.wait(60)
    until(lambda: listener.is_listening)
    assert failed == 50
    until(lambda: len(database.backends("listener")) == 1, what="the server holds one session")
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
    listener.stop()
    until(lambda: not database.backends("listener"))


@pytest.mark.faults
def test_nothing_is_lost_when_the_server_is_restarted(workers: Workers, journal: Journal) -> None:
    """Field case A07: an immediate stop in the middle, and a worker killed while the server is away."""
    rounds = 1 if SHORT else 3
    server = start_server("restarts", fsync=True)
    try:
        _manage(server.url, "migrate", "--verbosity", "0")
        _manage(server.url, "flush", "--no-input")
        _enqueue(server.url, str(journal), 200)
        for _ in range(rounds):
            done = len(journal.starts())
            # The survivor's lease is longer than the server is away: a worker that lost all it had would stop.
            survivor = workers.start("--concurrency", "2", url=server.url)
            victim = workers.start("--concurrency", "2", url=server.url, settings={"LEASE_SECONDS": 4})
            survivor.until_started()
            victim.until_started()
            until(lambda done=done: len(journal.starts()) > done + 5)
            server.cluster._must("pg_ctl", "stop", "-w", "-D", str(server.data), "-m", "immediate")
            victim.kill()
            survivor.until_says("database.failed")
            server.cluster.bring_up(fsync=True)
            until(lambda done=done: len(journal.starts()) > done + 20)
            assert survivor.drain() == 0
        workers.start(url=server.url, settings={"LEASE_SECONDS": 4})
        with psycopg.connect(server.url, autocommit=True) as connection:
            until(
                lambda: connection.execute("SELECT DISTINCT state FROM pgqueue_job").fetchall() == [("succeeded",)],
                within_seconds=120,
                what="a fresh worker does the rest",
            )
        assert len(set(journal.starts())) == 200
        print(f"{len(journal.starts())} starts of 200 jobs")
    finally:
        workers.end_all()
        server.stop()


def _manage(url: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "django", *arguments], check=True, cwd=PROJECT, env=_environment(url))


def _enqueue(url: str, journal: str, count: int) -> None:
    program = (
        "import sys, django; django.setup()\n"
        "from pgqueue import enqueue_many\n"
        "from tests.testapp.fault_tasks import last_for\n"
        "enqueue_many(last_for.bind(sys.argv[1], 0.02, f'job-{n}') for n in range(int(sys.argv[2])))\n"
    )
    command = [sys.executable, "-c", program, journal, str(count)]
    subprocess.run(command, check=True, cwd=PROJECT, env=_environment(url))


def _environment(url: str) -> dict[str, str]:
    return {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}


def test_a_burst_ends_with_everything_done(workers: Workers, database: Database) -> None:
    enqueue_many(fault_tasks.nothing.bind() for _ in range(200))
    assert workers.start("--burst").wait() == 0
    assert database.are_all("succeeded")
