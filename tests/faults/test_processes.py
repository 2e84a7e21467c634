"""Supervised, recycled, reloaded and redeployed processes: real forks, real signals, every pid printed."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from pgqueue import enqueue_many
from tests.testapp import fault_tasks, process_tasks

from .harness import PROJECT, SHORT, Database, Journal, WorkerProcess, Workers, database_url, not_in_short, until

pytestmark = pytest.mark.django_db(transaction=True)

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
TASKS = {"TASK_MODULES": ["tasks", "process_tasks"]}
# A listener's thread takes up to a second to end.
QUICK = {"LISTEN": False, "POLL_WITHOUT_LISTEN_SECONDS": 0.2}


class Family:
    """A supervisor and its children, as its log tells of them."""

    def __init__(self, supervisor: WorkerProcess) -> None:
        self.supervisor = supervisor

    def children(self) -> list[int]:
        """Return the pids of all children there ever were, oldest first."""
        return [int(pid) for pid in re.findall(r"child_started slot=\d+ pid=(\d+)", self.supervisor.log())]

    def started(self) -> list[int]:
        """Return the pids of those that have come so far as to claim."""
        return [int(pid) for pid in re.findall(r"worker\.started worker=\d+ pid=(\d+)", self.supervisor.log())]

    def ends(self) -> list[str]:
        return re.findall(r"child_ended slot=\d+ pid=\d+ (.*) lived_seconds", self.supervisor.log())

    def until_started(self, processes: int) -> Family:
        until(lambda: len(self.started()) >= processes, what=f"{processes} started: {self.supervisor.log()}")
        print(f"supervisor={self.supervisor.pid} children={self.children()}")
        return self

    def until_gone(self) -> None:
        """Nobody but the reaper of orphans may be left to wait for them: a zombie has ended too."""
        until(lambda: not any(is_running(pid) for pid in self.children()), what=f"{self.children()} end")


def is_running(pid: int) -> bool:
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip()[:1] not in ("", "Z", "X")


@pytest.fixture
def families(workers: Workers, journal: Journal) -> Iterator[list[Family]]:
    """A list of what is to be ended with the test, children included."""
    families: list[Family] = []
    yield families
    for gate in ("go", "import"):
        journal.open(gate)
    for family in families:
        family.supervisor.end()
        for pid in family.children():
            # An orphan's pid is its own until it has ended, and then it is reaped by somebody else.
            if is_running(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, KILL)
        family.until_gone()


@pytest.fixture
def start(workers: Workers, families: list[Family]) -> Any:
    def start(*options: str, processes: int = 2, settings: dict[str, Any] = QUICK, **more: Any) -> Family:
        families.append(Family(workers.start("--processes", str(processes), *options, settings=settings, **more)))
        return families[-1]

    return start


# -- one supervisor ----------------------------------------------------------------------------------------


def test_processes_share_the_work_and_one_signal_drains_them(start: Any, database: Database, journal: Journal) -> None:
    family = start("--concurrency", "2").until_started(2)
    enqueue_many(fault_tasks.wait_for.bind(str(journal), f"job-{number}") for number in range(4))
    until(lambda: len(journal.starts()) == 4)
    assert Counter(event.pid for event in journal.events("start")) == dict.fromkeys(family.children(), 2)
    family.supervisor.send(TERM)
    until(lambda: family.supervisor.log().count("worker.draining") == 2)
    journal.open()
    assert family.supervisor.wait() == 0
    assert family.ends() == ["status=0 reason=done"] * 2
    assert database.rows("SELECT DISTINCT state, attempts, lease_losses FROM pgqueue_job") == [("succeeded", 1, 0)]
    family.until_gone()


def test_a_killed_process_is_replaced(start: Any, database: Database, journal: Journal) -> None:
    family = start().until_started(2)
    victim, survivor = family.children()
    os.kill(victim, KILL)
    family.until_started(3)
    assert family.supervisor.says("child_ended", f"pid={victim}", "signal=SIGKILL", "restart=in_")
    fault_tasks.pass_by.enqueue(str(journal))
    until(lambda: database.are_all("succeeded"))
    assert family.supervisor.drain() == 0
    assert family.ends() == ["signal=SIGKILL", "status=0 reason=done", "status=0 reason=done"]
    assert is_running(survivor) is False


@pytest.mark.parametrize("number", [TERM, pytest.param(INT, marks=pytest.mark.faults)], ids=["SIGTERM", "SIGINT"])
def test_a_signal_to_the_whole_group_drains_though_each_child_gets_it_twice(
    start: Any, database: Database, journal: Journal, number: signal.Signals
) -> None:
    """Ctrl-C in a terminal and systemd's `KillMode=control-group` signal the children too."""
    family = start(processes=1).until_started(1)
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    until(journal.starts)
    (child,) = family.children()
    os.kill(child, number)
    family.supervisor.send(number)
    family.supervisor.until_says("supervisor.draining")
    os.kill(child, number)
    journal.open()
    assert family.supervisor.wait() == 0
    assert database.job(job_id)["state"] == "succeeded"
    assert family.ends() == ["status=0 reason=done"]


def test_a_second_signal_leaves_at_once(start: Any, database: Database, journal: Journal) -> None:
    family = start().until_started(2)
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    until(journal.starts)
    family.supervisor.send(INT)
    family.supervisor.until_says("worker.draining")
    family.supervisor.send(TERM)
    assert family.supervisor.wait() == 1
    assert "signal=SIGKILL" in family.ends()
    assert database.job(job_id)["state"] == "running"
    family.until_gone()


def test_a_signal_right_after_the_fork_is_not_lost(start: Any, database: Database, journal: Journal) -> None:
    fault_tasks.pass_by.enqueue(str(journal))
    family = start()
    until(family.children)
    assert family.supervisor.drain(within_seconds=20) == 0
    assert set(family.ends()) <= {"status=0 reason=done"}
    assert database.states().get("running") is None
    family.until_gone()


def test_children_drain_when_their_supervisor_is_killed(start: Any, database: Database, journal: Journal) -> None:
    family = start().until_started(2)
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    until(journal.starts)
    assert family.supervisor.kill() == -KILL
    family.supervisor.process.wait()
    until(lambda: family.supervisor.log().count("worker.draining") == 2)
    assert family.supervisor.log().count("worker.orphaned") == 2
    journal.open()
    family.until_gone()
    assert database.job(job_id)["state"] == "succeeded"


def test_a_burst_ends_when_every_process_finds_nothing_more(start: Any, database: Database, journal: Journal) -> None:
    enqueue_many(fault_tasks.pass_by.bind(str(journal), f"job-{number}") for number in range(200))
    family = start("--burst")
    assert family.supervisor.wait() == 0
    assert database.are_all("succeeded")
    assert len(journal.starts()) == len(set(journal.starts())) == 200
    assert family.ends() == ["status=0 reason=done"] * 2


def test_a_process_with_its_jobs_done_is_replaced(start: Any, database: Database, journal: Journal) -> None:
    enqueue_many(fault_tasks.pass_by.bind(str(journal), f"job-{number}") for number in range(3))
    family = start("--max-jobs", "2", processes=1)
    until(lambda: database.are_all("succeeded"))
    assert family.supervisor.drain() == 0
    assert [count for _, count in Counter(event.pid for event in journal.events("start")).most_common()] == [2, 1]
    assert set(family.ends()) == {"status=0 reason=done"}


# -- no connection and no thread at the fork -------------------------------------------------------------

POOLED = """
import threading
import django
from django.conf import settings
settings.DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {"min_size": 2, "max_size": 12}
django.setup()
from django.contrib.auth import get_user_model
from django.core.management import call_command
get_user_model().objects.count()
print("threads before:", [thread.name for thread in threading.enumerate()])
assert threading.active_count() > 1, "the pool has threads"
call_command("runworker", "--processes", "4", "--burst", "--concurrency", "4")
"""


@pytest.mark.case("J12")
@pytest.mark.parametrize("jobs", [100, pytest.param(4_000, marks=pytest.mark.faults)])
def test_a_pool_used_before_the_fork_is_not_shared(database: Database, journal: Journal, jobs: int) -> None:
    """Python 3.12 and later warn of a fork beside threads, which is an error here."""
    enqueue_many(process_tasks.ask_the_database_and_note.bind(str(journal), f"job-{n}") for n in range(jobs))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", POOLED],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=PROJECT,
        check=False,
        env={
            **os.environ,
            "DATABASE_URL": database_url(),
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "PGQUEUE_TEST_SETTINGS": json.dumps(TASKS | QUICK),
        },
    )
    print(done.stdout, done.stderr)
    pids = Counter(event.pid for event in journal.events("start"))
    print(f"exit_status={done.returncode} jobs by pid={dict(pids)}")
    assert done.returncode == 0
    assert done.stderr.count("status=0 reason=done") == 4
    assert not re.search(r"job\.failed|database\.failed|heartbeat\.failed|Error|Warning", done.stderr)
    assert pids.total() == len(set(journal.starts())) == jobs
    assert database.rows("SELECT DISTINCT state, attempts, lease_losses FROM pgqueue_job") == [("succeeded", 1, 0)]


@pytest.mark.faults
def test_workers_that_cannot_reach_the_database_end_the_supervisor(start: Any, tmp_path: Path) -> None:
    family = start(url=database_url(socket_directory=tmp_path))
    assert family.supervisor.wait(within_seconds=60) == 70
    assert set(family.ends()) == {"status=69 reason=no_start"}
    assert len(family.ends()) >= 10
    assert family.supervisor.says("died soon after their start")


# -- recycling ---------------------------------------------------------------------------------------------


def test_a_process_above_its_memory_drains_and_says_so(workers: Workers, database: Database, journal: Journal) -> None:
    worker = workers.start("--max-memory-mb", "250", settings=TASKS | QUICK).until_started()
    fault_tasks.wait_for.enqueue(str(journal))
    until(journal.starts)
    process_tasks.hold_megabytes.enqueue(300)
    worker.until_says("worker.recycling", "reason=memory")
    worker.until_says("worker.draining")
    assert worker.is_alive()
    journal.open()
    assert worker.wait() == 79
    assert database.rows("SELECT DISTINCT state, attempts FROM pgqueue_job") == [("succeeded", 1)]


@pytest.mark.faults
def test_a_process_above_its_memory_is_replaced_at_once(start: Any, database: Database, journal: Journal) -> None:
    family = start("--max-memory-mb", "250", processes=1, settings=TASKS | QUICK).until_started(1)
    process_tasks.hold_megabytes.enqueue(300)
    family.until_started(2)
    assert family.supervisor.says("child_ended", "status=79", "reason=memory", "restart=in_0.0_seconds")
    fault_tasks.pass_by.enqueue(str(journal))
    until(lambda: database.are_all("succeeded"))
    assert family.supervisor.drain() == 0


@pytest.mark.faults
@not_in_short
def test_a_frozen_process_is_replaced_once_it_knows(start: Any, database: Database, journal: Journal) -> None:
    family = start(processes=1, settings={"LEASE_SECONDS": 2}).until_started(1)
    fault_tasks.wait_for.enqueue(str(journal))
    until(journal.starts)
    (frozen,) = family.children()
    os.kill(frozen, signal.SIGSTOP)
    until(lambda: database.value("SELECT lease_until < statement_timestamp() FROM pgqueue_job"))
    journal.open()
    os.kill(frozen, signal.SIGCONT)
    family.until_started(2)
    assert family.ends() == ["status=75 reason=unfit"]
    until(lambda: database.are_all("succeeded"))
    assert family.supervisor.drain() == 0


# -- reload ------------------------------------------------------------------------------------------------

RELOADED_SETTINGS = """
from tests.settings import *
DEBUG = True
INSTALLED_APPS = [*INSTALLED_APPS, "reloaded"]
"""


class Reloaded:
    """An app outside the project, whose tasks a test writes again and again."""

    def __init__(self, directory: Path, workers: Workers) -> None:
        (directory / "reloaded").mkdir(parents=True)
        (directory / "reloaded/__init__.py").touch()
        (directory / "reloaded_settings.py").write_text(RELOADED_SETTINGS)
        self._tasks = directory / "reloaded/tasks.py"
        self.write("1")
        self.worker = workers.start(
            "--reload",
            settings=QUICK,
            PYTHONPATH=str(directory),
            DJANGO_SETTINGS_MODULE="reloaded_settings",
            PYTHONDONTWRITEBYTECODE="1",
        )

    def write(self, version: str) -> None:
        self._tasks.write_text(f"import os\nprint('version', {version}, 'pid', os.getpid())\n")

    def until_runs(self, version: str) -> None:
        """Wait for the version's import, in the same process as ever."""
        self.worker.until_says(f"version {version} pid {self.worker.pid}")


@pytest.mark.faults
def test_a_changed_file_drains_and_starts_again(
    workers: Workers, database: Database, journal: Journal, tmp_path: Path
) -> None:
    reloaded = Reloaded(tmp_path / "code", workers)
    worker = reloaded.worker.until_started()
    fault_tasks.wait_for.enqueue(str(journal))
    until(journal.starts)
    until(lambda: (reloaded.write("2"), worker.says("worker.draining"))[1], what="a file written after the first look")
    assert not worker.says("version 2")
    journal.open()
    reloaded.until_runs("2")
    until(lambda: worker.log().count("worker.started") == 2)
    assert worker.drain() == 0
    assert database.rows("SELECT state, attempts, lease_losses FROM pgqueue_job") == [("succeeded", 1, 0)]


@pytest.mark.faults
def test_a_signal_while_it_drains_for_a_changed_file_ends_it(
    workers: Workers, database: Database, journal: Journal, tmp_path: Path
) -> None:
    reloaded = Reloaded(tmp_path / "code", workers)
    worker = reloaded.worker.until_started()
    job_id = fault_tasks.wait_for.enqueue(str(journal)).id
    until(journal.starts)
    until(lambda: (reloaded.write("2"), worker.says("worker.draining"))[1])
    worker.send(INT)
    journal.open()
    assert worker.wait(within_seconds=20) == 0
    assert not worker.says("version 2")
    assert database.job(job_id)["state"] == "succeeded"


@pytest.mark.faults
@not_in_short
def test_a_file_that_cannot_be_imported_is_waited_for(workers: Workers, database: Database, tmp_path: Path) -> None:
    reloaded = Reloaded(tmp_path / "code", workers)
    worker = reloaded.worker.until_started()
    until(lambda: (reloaded.write("1 +"), worker.says("worker.draining"))[1])
    worker.until_says("worker.waiting", "import_failed")
    until(lambda: (reloaded.write("2"), worker.says("version 2"))[1])
    until(lambda: worker.log().count("worker.started") == 2)
    assert worker.drain() == 0


# -- a deploy under load -----------------------------------------------------------------------------------


class Load:
    """Enqueues from another thread, evenly, until told to stop."""

    def __init__(self, journal: Journal) -> None:
        self.enqueued = 0
        self._journal = journal
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._enqueue)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stopped.set()
        self._thread.join()

    def _enqueue(self) -> None:
        try:
            while not self._stopped.wait(0.1):
                names = [f"job-{self.enqueued + number}" for number in range(8)]
                enqueue_many(
                    fault_tasks.last_for.bind(str(self._journal), 0.05 * (number % 5), name)
                    for number, name in enumerate(names)
                )
                self.enqueued += len(names)
        finally:
            connection.close()


@pytest.mark.faults
@pytest.mark.parametrize(
    "supervised", [False] if SHORT else [False, True], ids=["single"] if SHORT else ["single", "supervised"]
)
def test_a_rolling_deploy_loses_nothing_runs_nothing_twice_and_charges_nobody(
    workers: Workers, start: Any, database: Database, journal: Journal, supervised: bool
) -> None:
    """Three workers are replaced one after the other, twice around, while jobs keep coming."""

    def start_one() -> WorkerProcess:
        if supervised:
            return start("--concurrency", "3").until_started(2).supervisor
        return workers.start("--concurrency", "6").until_started()

    began = time.monotonic()
    running = [start_one() for _ in range(3)]
    with Load(journal) as load:
        for _ in range(2 * len(running)):
            worked = len(journal.starts())
            old = running.pop(0)
            assert old.drain() == 0
            running.append(start_one())
            until(lambda worked=worked: len(journal.starts()) > worked + 20, what="work flows on")
    until(lambda: database.are_all("succeeded"), what=f"all is done: {database.states()}")
    print(f"{load.enqueued} jobs, 6 workers replaced in {time.monotonic() - began:.1f} s")
    assert sorted(journal.starts()) == sorted(f"job-{number}" for number in range(load.enqueued))
    assert len(journal.events("end")) == load.enqueued
    assert database.rows("SELECT DISTINCT attempts, lease_losses FROM pgqueue_job") == [(1, 0)]
    assert database.value("SELECT count(*) FROM pgqueue_attempt") == 0
    assert [worker.drain() for worker in running] == [0, 0, 0]
