"""A worker is given a standby, or a read-only database: it says so and ends; the commands see it too."""

from __future__ import annotations

import os
import subprocess
import sys

import psycopg
import pytest

from demo_project.postgres import start as start_server

from .harness import PROJECT, Workers, database_url

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

NO_START = 69
SENTENCE = "Database 'default' is a standby, or read-only. Give workers, and whoever enqueues, the primary"


def manage(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    command = [sys.executable, "-m", "django", *arguments]
    return subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, check=False)


def test_a_worker_on_a_standby_says_so_and_the_commands_see_it(workers: Workers) -> None:
    server = start_server("standby")
    try:
        assert manage(server.url, "migrate", "--verbosity", "0").returncode == 0
        server.cluster.shut_down()
        (server.data / "standby.signal").touch()
        server.cluster.bring_up(fsync=True)
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
        worker = workers.start(url=server.url)
        assert worker.wait() == NO_START
        checked = manage(server.url, "check", "--database", "default")
        status = manage(server.url, "pgqueue_status")
    finally:
        server.cluster.shut_down()
        (server.data / "standby.signal").unlink(missing_ok=True)
        server.stop()
    assert (SENTENCE in worker.log(), "Traceback" in worker.log()) == (True, False)
    assert (checked.returncode, "pgqueue.W019" in checked.stderr) == (0, True), checked.stderr
    assert (status.returncode, status.stdout) == (0, "No unfinished jobs.\n")
    assert "Database 'default' is a standby: jobs are neither enqueued nor run there." in status.stderr


def test_a_start_that_takes_too_long_is_not_told_as_a_server_that_is_away(workers: Workers) -> None:
    with psycopg.connect(database_url()) as holder:
        holder.execute("LOCK TABLE pgqueue_worker IN ACCESS EXCLUSIVE MODE")
        worker = workers.start()
        assert worker.wait() == NO_START
    assert "refused the start of a worker (QueryCanceled, 57014)" in worker.log()
    assert "cannot be reached" not in worker.log()


def test_a_server_that_is_away_at_the_start_is_told_as_such(workers: Workers) -> None:
    worker = workers.start(url=database_url().replace("pgqueue", "nobody", 1) + "&port=1")
    assert worker.wait() == NO_START
    assert "cannot be reached" in worker.log()
