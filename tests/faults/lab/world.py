"""The laboratory's own server, provider, load and worker processes, and how all of it is seen from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from demo_project.postgres import Server

from ..harness import ACCOUNTS, PROJECT, WorkerProcess, Workers, until
from ..proxy import Proxy
from . import recorder
from .checker import Evidence, Row
from .clock import Clock
from .ledger import read
from .pooler import Pooler
from .provider import Provider

ROLE = "lab_worker"
"""Workers are no superusers, so that privileges and limits bind them and not the observer."""
QUICK = {"BACKOFF_BASE_SECONDS": 0.2, "BACKOFF_CAP_SECONDS": 5, "PROBE_BACKOFF_CAP_SECONDS": 5}
PATIENT = {"MAX_LEASE_LOSSES": 1000, "MAX_PROBES": 1000}
WITHOUT_CALL = ("transactional", "plain")
WITHOUT_ROW = ("plain", "probed_async")
TABLES = """
    SELECT string_agg(format('%%I', relname), ', ') FROM pg_class
    WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname ~ '^(pgqueue|lab)_'
"""
ENDED = """
    SELECT count(*) FROM pgqueue_job
    WHERE NOT (state IN ('succeeded', 'dead', 'cancelled') OR (state = 'unknown' AND probe_at IS NULL))
"""
ROWS = """
    SELECT id, state, recovery, task, lease_losses, probe_at IS NOT NULL AND probe_at <= statement_timestamp()
    FROM pgqueue_job
"""
DONE = """
    SELECT extract(epoch FROM at)::float8 FROM lab_move
    WHERE new_state = 'succeeded' AND old_state <> 'succeeded' AND at >= to_timestamp(%s)
"""


def prepare(server: Server) -> None:
    """Create tables, trigger and role in the server of the laboratory. May be done again."""
    command = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
    environment = {**os.environ, "DATABASE_URL": server.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    subprocess.run(command, check=True, cwd=PROJECT, env=environment)
    with psycopg.connect(server.url, autocommit=True) as connection:
        recorder.set_up(connection)
        if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [ROLE]).fetchone() is None:
            connection.execute(f"CREATE ROLE {ROLE} LOGIN")
        give_rights(connection)


def give_rights(connection: psycopg.Connection[Any]) -> None:
    connection.execute(f"ALTER ROLE {ROLE} LOGIN CONNECTION LIMIT -1")
    connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {ROLE}")
    connection.execute(f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA public TO {ROLE}")


class Observer:
    """A superuser's connection past every proxy, made again whenever the server was away."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[Any] | None = None

    def rows(self, statement: str, *params: Any, within_seconds: float = 60.0) -> list[Any]:
        """Return the rows, or none for a command. Tries again while the server is away."""
        deadline = time.monotonic() + within_seconds
        while True:
            try:
                found = self.connection().execute(statement, params)
                return found.fetchall() if found.description else []
            except psycopg.OperationalError:
                self.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def value(self, statement: str, *params: Any) -> Any:
        return self.rows(statement, *params)[0][0]

    def connection(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            options = "-c default_transaction_read_only=off -c statement_timeout=60s"
            self._connection = psycopg.connect(
                self._url, autocommit=True, application_name="lab observer", options=options
            )
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class World:
    """One run: everything in it is started by `begin` and ended by `end`."""

    def __init__(self, server: Server, directory: Path, *, lease_seconds: float, fences: bool = False) -> None:
        self.server, self.directory, self.lease_seconds = server, directory, lease_seconds
        self.ledger = directory / "ledger"
        self.observer = Observer(server.url)
        self.provider = Provider(self.ledger, fences=fences)
        self.proxy = Proxy(server.cluster.sockets)
        self.pooler: Pooler | None = None
        self.clock: Clock | None = None
        self.marker = f"PGQUEUE_LAB={os.getpid()}-{id(self)}"
        self.statuses: Counter[int] = Counter()
        self._workers = Workers(directory)
        self._slots: list[WorkerProcess] = []
        self._starts: list[tuple[tuple[str, ...], dict[str, Any]]] = []
        self._producer: subprocess.Popen[bytes] | None = None
        self._keeper: threading.Thread | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()

    # -- before and after ------------------------------------------------------------------------------

    def empty(self) -> None:
        """Leave nothing of an earlier run."""
        self.observer.rows("ALTER SYSTEM RESET ALL")
        self.observer.rows("SELECT pg_reload_conf()")
        self.observer.rows(f"TRUNCATE {self.observer.value(TABLES)}")
        give_rights(self.observer.connection())

    def pool(self, mode: str) -> None:
        """Put a PgBouncer between the workers and the server."""
        self.pooler = Pooler(self.server, mode=mode, user=ROLE)
        self.pooler.start()

    def url(self, *, through_proxy: bool = False) -> str:
        """Return the URL for workers: through the pooler, where there is one."""
        sockets = self.proxy.directory if through_proxy else self.server.cluster.sockets
        if self.pooler is not None:
            sockets = self.pooler.directory
        return f"postgresql://{ROLE}@/pgqueue?host={sockets}"

    def add_worker(self, *options: str, settings: dict[str, Any], url: str, **environment: str) -> None:
        """Start a worker that is started again when it ends, as a service manager does."""
        name, _, value = self.marker.partition("=")
        start = {"settings": {**QUICK, **PATIENT, **settings}, "url": url, **environment, name: value}
        self._starts.append((options, start))
        self._slots.append(self._workers.start(*options, **start))

    def begin(self, *, each_second: float, plain_each_second: float) -> None:
        for worker in self._slots:
            worker.until_says("worker.started")
        self._keeper = threading.Thread(target=self._keep, daemon=True)
        self._keeper.start()
        module = [sys.executable, "-m", "tests.faults.lab.producer"]
        rates = [str(each_second), str(plain_each_second)]
        environment = {**os.environ, "DATABASE_URL": self.server.url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
        with (self.directory / "producer.log").open("wb") as log:
            self._producer = subprocess.Popen(
                [*module, self.provider.url, str(self.ledger), *rates], cwd=PROJECT, env=environment, stderr=log
            )

    def stop_load(self) -> None:
        if self._producer is not None and self._producer.poll() is None:
            self._producer.send_signal(signal.SIGTERM)
            assert self._producer.wait(30) == 0, "the load ended with an error"

    def until_rest(self, *, within_seconds: float) -> None:
        """Wait until every job has ended or waits for a person; what is not so in time is for the checker."""
        with suppress(AssertionError):
            until(lambda: self.observer.value(ENDED) == 0, within_seconds=within_seconds, what="all jobs ended")

    def stop_workers(self, *, within_seconds: float) -> list[str]:
        """Drain all workers; return what did not end, with its log."""
        self._stopping.set()
        if self._keeper is not None:
            self._keeper.join()
        for worker in self._slots:
            if worker.is_alive():
                worker.send(signal.SIGTERM)
        deadline = time.monotonic() + within_seconds
        found = []
        for worker in self._slots:
            try:
                self.statuses[worker.process.wait(max(deadline - time.monotonic(), 0.1))] += 1
            except subprocess.TimeoutExpired:
                found.append(f"{worker.name} goes on {within_seconds:g} s after SIGTERM: {worker.log()[-1500:]}")
        with suppress(AssertionError):
            until(lambda: not self.processes(), within_seconds=15)
        return found + [f"process {pid} is left: {command}" for pid, command in self.processes().items()]

    def end(self) -> None:
        """End everything, whatever state it is in."""
        self._stopping.set()
        if self._keeper is not None:
            self._keeper.join()
        for worker in self._slots:
            worker.end()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._producer is not None and self._producer.poll() is None:
            self._producer.kill()
            self._producer.wait()
        if self.pooler is not None:
            self.pooler.end()
        self.provider.close()
        self.observer.close()

    # -- workers ---------------------------------------------------------------------------------------

    def alive(self) -> list[WorkerProcess]:
        """Return the workers that have started and not ended."""
        with self._lock:
            return [worker for worker in self._slots if worker.is_alive() and worker.says("worker.started")]

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.directory.glob("worker-*.log")))

    def _keep(self) -> None:
        while not self._stopping.wait(0.2):
            for number, worker in enumerate(self._slots):
                if worker.is_alive():
                    continue
                self.statuses[worker.process.returncode] += 1
                options, start = self._starts[number]
                with self._lock:
                    self._slots[number] = self._workers.start(*options, **start)

    def processes(self) -> dict[int, str]:
        """Return every process with the mark of this run's workers, children of killed supervisors included."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.marker.encode() in (path / "environ").read_bytes().split(b"\0"):
                    found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    # -- what is recorded ------------------------------------------------------------------------------

    def done_since(self, instant: float, *, by_ledger: bool = False) -> list[float]:
        """Return when jobs succeeded, by the server's clock, or when they ran to their end, by the ledger's."""
        if by_ledger:
            return [entry.at for entry in read(self.ledger) if entry.kind == "ran" and entry.at >= instant]
        return [row[0] for row in self.observer.rows(DONE, instant)]

    def evidence(self) -> Evidence:
        accounts = {row[0]: row[1] for row in self.observer.rows(ACCOUNTS)}
        rows = self.observer.rows(ROWS)
        written = self.observer.rows("SELECT job_id, count(*) FROM lab_row GROUP BY job_id")
        lost = self.observer.value("SELECT count(*) FROM pgqueue_attempt WHERE outcome = 'lost'")
        return Evidence(
            ledger=read(self.ledger),
            rows=[_row(*row, accounts) for row in rows],
            moves=recorder.read_moves(self.observer.connection()),
            written=dict(written),
            lost_attempts=lost,
        )


def _row(
    job: int, state: str, recovery: str, task: str, losses: int, is_overdue: bool, accounts: dict[int, str | None]
) -> Row:
    name = task.rpartition(".")[2]
    calls, writes = name not in WITHOUT_CALL, name not in WITHOUT_ROW
    account = "overdue for a probe" if is_overdue else accounts.get(job)
    return Row(job, state, recovery, calls=calls, writes=writes, account=account, losses=losses)
