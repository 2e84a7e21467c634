"""What tasks do to their process: neighbours get their ending, and a process that is to end ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pgqueue import enqueue_many
from tests.testapp import dangerous_tasks, fault_tasks

from .harness import Database, Journal, WorkerProcess, Workers, not_in_short, until

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

SETTINGS = {
    "TASK_MODULES": ["tasks", "fault_tasks", "dangerous_tasks"],
    "LEASE_SECONDS": 4,
    "BACKOFF_BASE_SECONDS": 0.2,
    "MAX_LEASE_LOSSES": 1,
}
DRAIN_SECONDS = 10.0
"""After SIGTERM, with nothing that runs."""
GONE_SECONDS = 10.0
"""From the line `worker.stopped` to the end of the process."""
NEIGHBOURS = 8

DEADLY = {"exit_at_once", "abort", "segfault", "kill_itself", "overflow_the_stack"}
LEAVING_A_PROCESS = {"leave_a_child", "fork_and_sleep"}
"""It lives on as the task wanted it to. Every other copy is ended."""
IN_SHORT = ("leave_a_thread", "fork_and_return", "leave_a_thread_that_holds_the_interpreter", "ignore_sigterm_in_c")


def _deeds() -> list[Any]:
    return [pytest.param(name, marks=() if name in IN_SHORT else (not_in_short,)) for name in dangerous_tasks.DEEDS]


@pytest.mark.parametrize("name", _deeds())
def test_others_get_their_ending_and_the_process_ends(
    workers: Workers, database: Database, journal: Journal, name: str
) -> None:
    """The worker is a child of a supervisor, so that one that died is replaced."""
    dangerous = int(dangerous_tasks.do.enqueue(str(journal), name).id)
    family = workers.start(
        "--processes", "1", "--concurrency", "4", settings=SETTINGS, PGQUEUE_TEST_JOURNAL=str(journal)
    )
    until(lambda: name in journal.starts(), what=name)
    neighbours = _enqueue(journal)
    try:
        until(lambda: _are_over(database, [dangerous, *neighbours]), what=f"{name}: {database.states()}")
        assert [database.job(id)["state"] for id in neighbours] == ["succeeded"] * NEIGHBOURS
        if name in DEADLY:
            assert database.job(dangerous)["lease_losses"] > 0
        family.send(signal.SIGTERM)
        family.wait(within_seconds=DRAIN_SECONDS)
        if name not in LEAVING_A_PROCESS:
            until(lambda: not _relatives(journal), within_seconds=1, what="every copy ends")
        _until_gone(_children(family), within_seconds=1)
    finally:
        _kill_what_is_left(family, journal)


def _enqueue(journal: Journal) -> list[int]:
    return enqueue_many(fault_tasks.pass_by.bind(str(journal), f"neighbour-{n}") for n in range(NEIGHBOURS))


def _are_over(database: Database, ids: list[int]) -> bool:
    return all(database.job(id)["state"] in ("succeeded", "dead") for id in ids)


def _children(family: WorkerProcess) -> list[int]:
    return [int(pid) for pid in re.findall(r"child_started slot=\d+ pid=(\d+)", family.log())]


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _until_gone(pids: list[int], *, within_seconds: float) -> None:
    until(lambda: not any(map(_is_running, pids)), within_seconds=within_seconds, what=f"{pids} end")


def _relatives(journal: Journal) -> list[int]:
    """Return the pids of all processes that have the environment that this test gave its worker."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"PGQUEUE_TEST_JOURNAL={journal}".encode() in environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


def _kill_what_is_left(family: WorkerProcess, journal: Journal) -> None:
    """Children that a task made outlive the worker."""
    family.end()
    for pid in _relatives(journal):
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("name", "options", "status"),
    [
        ("leave_a_pool", ("--max-jobs", "1"), 0),
        pytest.param("leave_a_child", ("--burst",), 0, marks=not_in_short),
        pytest.param("leave_a_hanging_hook", ("--max-memory-mb", "20000"), 0, marks=not_in_short),
        pytest.param("break_the_streams", (), 0, marks=not_in_short),
        pytest.param("close_the_streams", (), 0, marks=not_in_short),
    ],
)
def test_a_lone_process_ends_with_its_status(
    workers: Workers, database: Database, journal: Journal, name: str, options: tuple[str, ...], status: int
) -> None:
    dangerous_tasks.do.enqueue(str(journal), name)
    worker = workers.start(*options, settings=SETTINGS, PGQUEUE_TEST_JOURNAL=str(journal))
    try:
        until(lambda: database.are_all("succeeded"))
        if not options or "memory" in options[0]:
            worker.send(signal.SIGTERM)
        assert worker.wait(within_seconds=GONE_SECONDS) == status
        if name.startswith("leave"):
            assert worker.says("worker.cut_off")
    finally:
        _kill_what_is_left(worker, journal)


@pytest.mark.parametrize("processes", [(), ("--processes", "1")], ids=["lone", "supervised"])
def test_a_process_that_was_frozen_is_gone_though_a_thread_was_left(
    workers: Workers, database: Database, journal: Journal, processes: tuple[str, ...]
) -> None:
    """It has lost its leases and leaves with 75. Its place must not stay empty."""
    dangerous_tasks.do.enqueue(str(journal), "leave_a_thread")
    settings = {**SETTINGS, "LEASE_SECONDS": 2}
    worker = workers.start(*processes, settings=settings)
    until(lambda: database.are_all("succeeded"))
    fault_tasks.wait_for.enqueue(str(journal))
    until(lambda: "job" in journal.starts())
    frozen = _children(worker)[0] if processes else worker.pid
    os.kill(frozen, signal.SIGSTOP)
    until(lambda: database.value("SELECT bool_or(lease_until < statement_timestamp()) FROM pgqueue_job"))
    journal.open()
    os.kill(frozen, signal.SIGCONT)
    worker.until_says("worker.stopped")
    if processes:
        _until_gone([frozen], within_seconds=GONE_SECONDS)
        worker.until_says("child_ended", "status=75")
        until(lambda: database.are_all("succeeded"))
        assert worker.drain(within_seconds=DRAIN_SECONDS) == 0
    else:
        assert worker.wait(within_seconds=GONE_SECONDS) == 75


def test_a_child_that_has_drained_ends_with_its_killed_supervisor(
    workers: Workers, database: Database, journal: Journal
) -> None:
    dangerous_tasks.do.enqueue(str(journal), "leave_a_thread")
    family = workers.start("--processes", "1", settings=SETTINGS)
    until(lambda: database.are_all("succeeded"))
    (child,) = _children(family)
    family.send(signal.SIGTERM)
    family.until_says("worker.stopped")
    family.kill()
    _until_gone([child], within_seconds=GONE_SECONDS)


@not_in_short
def test_a_drain_is_never_cut_short_by_the_supervisor(workers: Workers, database: Database, journal: Journal) -> None:
    """A job that takes longer than every bound, in a process that answers."""
    job = fault_tasks.wait_for.enqueue(str(journal)).id
    family = workers.start("--processes", "1", settings={**SETTINGS, "LEASE_SECONDS": 2})
    until(journal.starts)
    family.send(signal.SIGTERM)
    time.sleep(13)
    assert family.is_alive()
    journal.open()
    assert family.wait() == 0
    assert database.job(job)["state"] == "succeeded"
