"""Connections are lost: leases, listening and the process itself survive it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from demo_project.postgres import start as start_server
from pgqueue import enqueue_many
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
    until(
        lambda: (
            database.value("SELECT query FROM pg_stat_activity WHERE pid = %s", *after)
            .rstrip()
            .endswith("LISTEN pgqueue")
        )
    )
    worker.until_says("listener.failed")
    # The worker looks once when its listener is back; only then is the sleep a minute long.
    time.sleep(1)
    began = time.monotonic()
    fault_tasks.pass_by.enqueue(str(journal))
    until(journal.starts, within_seconds=20)
    print(f"heard after {time.monotonic() - began:.3f} s")
    assert worker.drain() == 0


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
    really_listen = listening.listen

    def listen(connection: psycopg.Connection[Any]) -> None:
        nonlocal failed
        if failed < 50:
            failed += 1
            raise psycopg.OperationalError("on purpose")
        really_listen(connection)

    monkeypatch.setattr(listening, "listen", listen)
    monkeypatch.setattr(listening, "delay_seconds", lambda failures, **bounds: 0.005)
    descriptors = len(os.listdir("/proc/self/fd"))
    listener = Listener("default", on_wake=heard.set)
    listener.start()
    assert heard.wait(60)
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
