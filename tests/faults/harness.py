"""Worker processes under a test's hand, a journal that their tasks write, and the database as seen from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import psycopg
import pytest
from django.db import connection

from pgqueue.protocol.connecting import connect

PROJECT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 40.0
"""For a condition that must come true: a machine under load may take its time."""
POLL_SECONDS = 0.02
SHORT = bool(os.environ.get("PGQUEUE_SHORT"))
not_in_short = pytest.mark.skipif(SHORT, reason="left out of the short form: another test takes the same path")

T = TypeVar("T")


def until(look: Callable[[], T], *, within_seconds: float = PATIENCE_SECONDS, what: str = "") -> T:
    """Return the first true answer of `look`, asked again and again; fail when there is none in time."""
    deadline = time.monotonic() + within_seconds
    while not (answer := look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within_seconds:g} s: {what or look.__name__}")
        time.sleep(POLL_SECONDS)
    return answer


def holds_for(seconds: float, look: Callable[[], bool], *, what: str = "") -> None:
    """Fail as soon as `look` is false within the next seconds: for what must not happen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert look(), what
        time.sleep(POLL_SECONDS)


def database_url(*, socket_directory: Path | None = None, **options: str) -> str:
    """Return the URL of the run's test database, or of the same database through a proxy's socket."""
    found = connection.settings_dict
    plain = {name: value for name, value in found.get("OPTIONS", {}).items() if isinstance(value, str)}
    host, port = found["HOST"], found["PORT"]
    if socket_directory is not None:
        host, port, plain["host"] = "", "", str(socket_directory)
    account = quote(found["USER"]) + (f":{quote(found['PASSWORD'])}" if found["PASSWORD"] else "")
    place = f"{account}@{host}" + (f":{port}" if port else "")
    return f"postgresql://{place}/{quote(found['NAME'])}?{urlencode({**plain, **options})}"


@dataclass(frozen=True)
class Event:
    """One line that a task wrote."""

    kind: str
    name: str
    pid: int


class Journal:
    """What tasks said, in the order they said it, and the gates they wait at."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __str__(self) -> str:
        return str(self.directory)

    def events(self, kind: str | None = None) -> list[Event]:
        path = self.directory / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        found = (line.split() for line in lines)
        return [Event(said, name, int(pid)) for said, name, pid in found if kind in (None, said)]

    def starts(self) -> list[str]:
        return [event.name for event in self.events("start")]

    def open(self, gate: str = "go") -> None:
        (self.directory / gate).touch()


@dataclass
class WorkerProcess:
    """A worker started as people start it; its log is a file."""

    process: subprocess.Popen[bytes]
    log_path: Path
    name: str
    signals: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def says(self, *words: str) -> bool:
        """Say whether one line of the log has all the words."""
        return any(all(word in line for word in words) for line in self.log().splitlines())

    def until_says(self, *words: str, within_seconds: float = PATIENCE_SECONDS) -> None:
        def found() -> bool:
            assert self.process.poll() is None or self.says(*words), f"{self.name} ended: {self.log()}"
            return self.says(*words)

        try:
            until(found, within_seconds=within_seconds, what=f"{self.name} logs {words}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()[-3000:]}") from None

    def until_started(self) -> WorkerProcess:
        self.until_says("worker.started")
        return self

    def worker_id(self) -> int:
        line = next(line for line in self.log().splitlines() if "worker.started" in line)
        return int(line.partition("worker=")[2].split()[0])

    def send(self, number: int) -> None:
        self.signals.append(signal.Signals(number).name)
        self.process.send_signal(number)

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def wait(self, *, within_seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for the end, print who ended how, and return the exit status."""
        try:
            status = self.process.wait(within_seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"{self.name} pid={self.pid} runs on after {self.signals}\n{self.log()[-3000:]}"
            ) from None
        print(f"{self.name}: pid={self.pid} signals={','.join(self.signals) or '-'} exit_status={status}")
        return status

    def kill(self) -> int:
        self.send(signal.SIGKILL)
        return self.wait()

    def drain(self, *, within_seconds: float = PATIENCE_SECONDS) -> int:
        self.send(signal.SIGTERM)
        return self.wait(within_seconds=within_seconds)

    def end(self) -> None:
        """End it whatever state it is in."""
        if self.is_alive():
            self.process.kill()
            self.process.wait()


class Workers:
    """Starts workers and ends whatever is left of them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._started: list[WorkerProcess] = []

    def start(
        self,
        *options: str,
        settings: dict[str, Any] | None = None,
        url: str | None = None,
        **environment: str,
    ) -> WorkerProcess:
        name = f"worker-{len(self._started)}"
        log_path = self._directory / f"{name}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "django", "runworker", *options],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=PROJECT,
                # Under nohup we ignore it, and a child inherits that.
                preexec_fn=partial(signal.signal, signal.SIGHUP, signal.SIG_DFL),
                env={
                    **os.environ,
                    "DATABASE_URL": url or database_url(),
                    "DJANGO_SETTINGS_MODULE": "tests.settings",
                    "PYTHONUNBUFFERED": "1",
                    "PGQUEUE_TEST_SETTINGS": json.dumps(settings or {}),
                    "PYTHONPATH": os.pathsep.join([*environment.pop("PYTHONPATH", "").split(), str(PROJECT)]),
                    **environment,
                },
            )
        self._started.append(WorkerProcess(process, log_path, name))
        return self._started[-1]

    def end_all(self) -> None:
        for worker in self._started:
            worker.end()
            print(f"--- log of {worker.name} pid={worker.pid}\n{worker.log()[-4000:]}")


class Database:
    """The test database, seen on a connection of its own that no test cuts."""

    def __init__(self) -> None:
        self.connection = connect("default", role="observer")

    def rows(self, statement: str, *params: Any) -> list[Any]:
        return self.connection.execute(statement, params).fetchall()

    def value(self, statement: str, *params: Any) -> Any:
        row = self.connection.execute(statement, params).fetchone()
        return None if row is None else row[0]

    def states(self) -> dict[str, int]:
        return dict(self.rows("SELECT state, count(*) FROM pgqueue_job GROUP BY state"))

    def are_all(self, state: str) -> bool:
        return set(self.states()) == {state}

    def job(self, job_id: int | str) -> dict[str, Any]:
        cursor = self.connection.execute("SELECT * FROM pgqueue_job WHERE id = %s", [int(job_id)])
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        row = cursor.fetchone()
        assert row is not None
        return dict(zip(names, row, strict=True))

    def settled_by(self, job_id: int | str) -> int:
        """Return the worker that settled a job; for a quarantine, the worker that keeps it."""
        keeper = "SELECT COALESCE(parent_id, id) FROM pgqueue_worker WHERE id = %s"
        return int(self.value(keeper, self.job(job_id)["settled_by"]))

    def backends(self, role: str = "%") -> dict[int, str]:
        """Return pid and role of every session of a worker."""
        return dict(
            self.rows(
                "SELECT pid, application_name FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE %s"
                " AND application_name IN ('pgqueue worker', 'pgqueue heartbeat', 'pgqueue listener')",
                f"pgqueue {role}",
            )
        )

    def terminate(self, pids: Any) -> None:
        self.rows("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", list(pids))

    def are_blocked(self, role: str) -> bool:
        """Say whether a session of that role waits for a lock."""
        return bool(
            self.value(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name = %s AND wait_event_type = 'Lock'",
                f"pgqueue {role}",
            )
        )

    @contextlib.contextmanager
    def blocking(self, when: str, *, at_commit: bool = False) -> Iterator[Gate]:
        """Make every session that updates a job row so that `when` holds wait until the gate is opened.

        `when` is a condition on OLD and NEW. At the statement, or with `at_commit` inside the COMMIT.
        """
        gate = Gate()
        kind = "CONSTRAINT TRIGGER" if at_commit else "TRIGGER"
        moment = "AFTER" if at_commit else "BEFORE"
        deferred = "DEFERRABLE INITIALLY DEFERRED" if at_commit else ""
        self.connection.execute(
            f"""
            CREATE FUNCTION test_block() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM pg_advisory_xact_lock_shared({gate.KEY});
                RETURN NEW;
            END
            $$
            """
        )
        self.connection.execute(
            f"CREATE {kind} test_block {moment} UPDATE ON pgqueue_job {deferred}"
            f" FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION test_block()"
        )
        try:
            yield gate
        finally:
            gate.open()
            self.connection.execute("DROP FUNCTION test_block CASCADE")
            gate.close()

    @contextlib.contextmanager
    def refusing(self, when: str) -> Iterator[None]:
        """Have the server answer as if it were read-only to every update of a job row for which `when` holds."""
        self.connection.execute(
            """
            CREATE FUNCTION test_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                RAISE EXCEPTION 'cannot execute UPDATE in a read-only transaction' USING ERRCODE = '25006';
            END
            $$
            """
        )
        self.connection.execute(
            "CREATE TRIGGER test_refuse BEFORE UPDATE ON pgqueue_job"
            f" FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION test_refuse()"
        )
        try:
            yield
        finally:
            self.connection.execute("DROP FUNCTION test_refuse CASCADE")

    def assert_everything_accounted_for(self) -> Counter[str]:
        """Say of every unfinished job why it is not running; fail when there is none with no reason."""
        found = self.rows(ACCOUNTS)
        lost = [row for row in found if row[1] is None]
        assert not lost, f"jobs that nobody will ever run: {lost}"
        accounts = Counter(row[1] for row in found)
        print("accounts:", dict(accounts))
        return accounts


ACCOUNTS = """
    SELECT
        job.id,
        CASE
            WHEN job.state = 'running' AND job.lease_until > statement_timestamp() THEN 'leased'
            WHEN job.state = 'running' THEN 'to be taken over'
            WHEN job.state = 'unknown' AND job.probe_at IS NOT NULL THEN 'to be probed'
            WHEN job.state IN ('unknown', 'paused') THEN 'waits for a person'
            WHEN job.state NOT IN ('pending', 'retrying') THEN NULL
            WHEN EXISTS (
                SELECT FROM pgqueue_queue AS queue WHERE queue.name = job.queue AND queue.paused_at IS NOT NULL
            ) THEN 'queue paused'
            WHEN job.run_at > statement_timestamp() THEN 'due later'
            WHEN job.shard_key IS NOT NULL AND EXISTS (
                SELECT FROM pgqueue_job AS busy
                WHERE busy.state = 'running' AND busy.queue = job.queue AND busy.shard_key = job.shard_key
            ) THEN 'shard key busy'
            WHEN job.lane IN (0, 1, 2, 3) AND job.worker_id IS NULL AND job.lease_until IS NULL THEN 'claimable'
        END,
        job.state, job.lane, job.worker_id
    FROM pgqueue_job AS job
    WHERE job.state NOT IN ('succeeded', 'dead', 'cancelled')
"""


class Gate:
    """An advisory lock held by the test; whoever comes through the trigger waits for it."""

    KEY = 7_310_229

    def __init__(self) -> None:
        self._connection: psycopg.Connection[Any] = connect("default", role="gate")
        self._connection.execute("SELECT pg_advisory_lock(%s)", [self.KEY])

    def until_reached(self) -> None:
        def someone_waits() -> bool:
            row = self._connection.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %s",
                [self.KEY],
            ).fetchone()
            return bool(row and row[0])

        until(someone_waits, what="a session reaches the gate")

    def open(self) -> None:
        self._connection.execute("SELECT pg_advisory_unlock_all()")

    def close(self) -> None:
        self._connection.close()
