"""Why no worker starts: one sentence says what is wrong, where, and what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from django.db import connections
from django.test import override_settings
from psycopg import sql

from pgqueue.models import Worker
from pgqueue.protocol.refusing import why_no_start
from pgqueue.worker.options import Options
from pgqueue.worker.start import rehearse, sign_up
from tests.factories import JobFactory, QueueFactory
from tests.faults.harness import PROJECT, database_url

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

NO_START = 69
ROLE = "pgqueue_test_reader"
OPTIONS = Options(alias="default", concurrency=1, lease_seconds=60.0, poll_seconds=1.0)
READ_ONLY = "Database 'default' is a standby, or read-only. Give workers, and whoever enqueues, the primary"


def refusal(start: Callable[[Options], object] = sign_up) -> str:
    with pytest.raises(psycopg.Error) as raised:
        start(OPTIONS)
    told = why_no_start("default", raised.value)
    assert "\n" not in told
    return told


@pytest.fixture
def read_only(queue_connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Let new sessions begin read-only."""
    name = sql.Identifier(queue_connection.info.dbname)
    setting = sql.SQL("ALTER DATABASE {} SET default_transaction_read_only = on").format(name)
    queue_connection.execute(setting)
    connections["default"].close()
    yield
    queue_connection.execute(sql.SQL("ALTER DATABASE {} RESET default_transaction_read_only").format(name))
    connections["default"].close()


@pytest.fixture
def reader(queue_connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the queue's connections have a role that may read, and register nothing."""
    queue_connection.execute(f"DROP ROLE IF EXISTS {ROLE}")
    queue_connection.execute(f"CREATE ROLE {ROLE}")
    queue_connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {ROLE}")
    monkeypatch.setitem(connections["default"].settings_dict.setdefault("OPTIONS", {}), "assume_role", ROLE)
    yield
    queue_connection.execute(f"DROP OWNED BY {ROLE}")
    queue_connection.execute(f"DROP ROLE {ROLE}")


@pytest.mark.case("C13")
@pytest.mark.parametrize("start", [sign_up, rehearse])
def test_a_read_only_server_is_named(read_only: None, start: Callable[[Options], object]) -> None:
    assert refusal(start).startswith(READ_ONLY)


@pytest.mark.parametrize("start", [sign_up, rehearse])
def test_a_privilege_is_named(reader: None, start: Callable[[Options], object]) -> None:
    found = refusal(start)
    assert "lacks a privilege in database 'default'" in found
    assert "permission denied for" in found


@pytest.mark.parametrize("start", [sign_up, rehearse])
def test_missing_tables_are_named(
    queue_connection: psycopg.Connection[Any], start: Callable[[Options], object]
) -> None:
    queue_connection.execute("ALTER TABLE pgqueue_worker RENAME TO pgqueue_gone")
    try:
        found = refusal(start)
    finally:
        queue_connection.execute("ALTER TABLE pgqueue_gone RENAME TO pgqueue_worker")
    assert found == "The queue's tables are missing in database 'default': run manage.py migrate."


def test_tables_of_another_version_are_named(queue_connection: psycopg.Connection[Any]) -> None:
    queue_connection.execute("ALTER TABLE pgqueue_worker RENAME COLUMN release TO released")
    try:
        found = refusal()
    finally:
        queue_connection.execute("ALTER TABLE pgqueue_worker RENAME COLUMN released TO release")
    assert "are of another version: run manage.py migrate (column" in found


@override_settings(PGQUEUE={"CLAIM_TIMEOUT_SECONDS": 0.2})
def test_a_lock_is_no_server_that_cannot_be_reached(queue_connection: psycopg.Connection[Any]) -> None:
    with queue_connection.transaction():
        queue_connection.execute("LOCK TABLE pgqueue_worker")
        found = refusal()
        rehearse(OPTIONS)
    assert "Look for a lock on pgqueue_worker" in found


def test_a_server_that_is_away_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "HOST", "/nonexistent")
    monkeypatch.setitem(connections["default"].settings_dict["OPTIONS"], "host", "/nonexistent")
    found = refusal()
    assert found.startswith("Database 'default' cannot be reached: ")
    rehearse(OPTIONS)


def test_a_rehearsal_leaves_nothing() -> None:
    rehearse(OPTIONS)
    assert not Worker.objects.exists()


@pytest.mark.parametrize("options", [(), ("--processes", "2")], ids=["one process", "many"])
def test_the_command_ends_with_one_sentence(read_only: None, options: tuple[str, ...]) -> None:
    """No process is started that would meet the same."""
    environment = {**os.environ, "DATABASE_URL": database_url(), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    command = [sys.executable, "-m", "django", "runworker", *options]
    done = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == NO_START
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"CommandError: {READ_ONLY}")


@pytest.mark.parametrize("option", ["queues", "excluded"])
def test_a_queue_that_nothing_has_is_told(option: str, caplog: pytest.LogCaptureFixture) -> None:
    """A task, a setting, a row or a waiting job has each of the others."""
    JobFactory(queue="waiting")
    QueueFactory(name="acted-on")
    names = ("typo", "waiting", "acted-on", "default", "configured")
    with override_settings(PGQUEUE={"QUEUES": {"configured": {"MAX_ATTEMPTS": 3}}}), caplog.at_level("WARNING"):
        sign_up(replace(OPTIONS, **{option: names}))
    said = [line for line in caplog.messages if line.startswith("worker.unknown_queue")]
    assert said == ["worker.unknown_queue queue=typo problem=no_task_and_no_job_has_it"]
