"""What the supervisor decides, seen in real processes of a small script; and what `runworker` refuses."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections
from django.test import override_settings

from pgqueue.management.commands import runworker
from pgqueue.worker import recycling, supervisor
from pgqueue.worker.exits import MEANINGS, Exit
from pgqueue.worker.lifeline import SupervisorEnd, WorkerEnd, open_line
from pgqueue.worker.recycling import MemoryWatch, resident_mb

PROJECT = Path(__file__).resolve().parents[1]

SCRIPT = """
import logging, os, signal, sys, time
from pathlib import Path
from django.conf import settings
# An empty default is what Django's documentation shows for databases that routers choose.
settings.configure(DATABASES={{"default": {{}}, "jobs": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ""}}}})
logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")
from pgqueue.worker.supervisor import Patience, supervise

def drain_with(status):
    signal.signal(signal.SIGTERM, lambda *_: os._exit(status))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    # `signal.pause` would sleep for ever when the signal came just before it, while another thread had its turn.
    while True:
        time.sleep(0.05)

def births():
    # One byte each, so that the size is the number. Unbuffered: where an append ended is told by the system,
    # not guessed from the size at opening, so that no two processes get one number.
    with open({births!r}, "ab", buffering=0) as file:
        file.write(b".")
        return file.tell()

def births_so_far():
    return os.path.getsize({births!r})

def stop():
    os.kill(os.getpid(), signal.SIGTERM)

status = line = supervise({processes}, burst={burst}, on_stop=stop, patience=Patience(**{patience}))
if not isinstance(status, int):
{child}
sys.exit(status)
"""

FAST = {"steady_seconds": 0.4, "backoff_base_seconds": 0.02, "backoff_cap_seconds": 0.05}


class Ran:
    """A supervisor that came to its end: its status, and its log."""

    def __init__(
        self, directory: Path, child: str, *, processes: int = 1, burst: bool = False, **patience: Any
    ) -> None:
        script = SCRIPT.format(
            births=str(directory / "births"),
            processes=processes,
            burst=burst,
            patience=FAST | patience,
            child=textwrap.indent(textwrap.dedent(child), "    "),
        )
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            capture_output=True,
            text=True,
            timeout=30,
            cwd=PROJECT,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            check=False,
        )
        self.status = done.returncode
        self.log = done.stderr
        print(f"exit_status={self.status}\n{self.log}")

    def ends(self) -> list[str]:
        """Return how each child ended, in order."""
        return re.findall(r"child_ended slot=\d+ pid=\d+ (.*) lived_seconds", self.log)

    def pids(self, event: str) -> list[int]:
        return [int(pid) for pid in re.findall(rf"{event} slot=\d+ pid=(\d+)", self.log)]


@pytest.mark.case("J13")
def test_a_process_that_exits_at_once_five_times_ends_the_supervisor(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "os._exit(11)")
    assert ran.status == Exit.CHILDREN_DIE
    assert ran.ends() == ["status=11 reason=unknown"] * 5
    assert "ERROR supervisor.stopping reason=children_die deaths_in_a_row=5" in ran.log


def test_processes_that_crash_at_once_end_the_supervisor(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "os.kill(os.getpid(), signal.SIGSEGV)", processes=3)
    assert ran.status == Exit.CHILDREN_DIE
    assert set(ran.ends()) == {"signal=SIGSEGV"}
    assert len(ran.ends()) >= 15
    assert sorted(ran.pids("child_started")) == sorted(ran.pids("child_ended"))


def test_deaths_before_a_process_lived_for_a_while_are_forgotten(tmp_path: Path) -> None:
    ran = Ran(
        tmp_path,
        """
        if births() == 4:
            time.sleep(0.6)
        os._exit(11)
        """,
    )
    assert ran.status == Exit.CHILDREN_DIE
    assert len(ran.ends()) == 3 + 1 + 5
    waits = re.findall(r"restart=in_(\S+)_seconds", ran.log)
    assert waits[3] == "0.0"


def test_one_process_that_dies_again_and_again_does_not_end_the_others(tmp_path: Path) -> None:
    ran = Ran(
        tmp_path,
        """
        number = births()
        if number == 1:
            drain_with(0)
        if number == 10:
            os.kill(os.getppid(), signal.SIGTERM)
            os._exit(0)
        os._exit(11)
        """,
        processes=2,
    )
    assert ran.status == 0
    assert ran.ends().count("status=11 reason=unknown") == 8
    assert "children_die" not in ran.log


def test_a_process_that_lives_at_last_counts_as_living(tmp_path: Path) -> None:
    """One place has seen six deaths and its seventh process lives; then the other place's processes die."""
    ran = Ran(
        tmp_path,
        """
        number = births()
        if number == 1:
            while births_so_far() < 8:
                time.sleep(0.01)
            time.sleep(0.6)
        if number == 8:
            drain_with(0)
        if number == 15:
            os.kill(os.getppid(), signal.SIGTERM)
            os._exit(0)
        os._exit(11)
        """,
        processes=2,
    )
    assert ran.status == 0
    assert ran.ends().count("status=11 reason=unknown") == 13


def test_the_wait_before_a_successor_grows_up_to_its_cap(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "os._exit(11)", backoff_base_seconds=0.2, backoff_cap_seconds=0.4, deaths_in_a_row=4)
    first, *_, last = (float(wait) for wait in re.findall(r"restart=in_(\S+)_seconds", ran.log))
    assert 0.1 <= first <= 0.2 <= last <= 0.4


def test_a_burst_is_done_when_every_process_is(tmp_path: Path) -> None:
    ran = Ran(tmp_path, "os._exit(0 if births() > 2 else 11)", processes=3, burst=True)
    assert ran.status == 0
    assert sorted(ran.ends()) == ["status=0 reason=done"] * 3 + ["status=11 reason=unknown"] * 2


def test_recycled_processes_are_replaced_at_once_and_are_no_deaths(tmp_path: Path) -> None:
    ran = Ran(
        tmp_path,
        """
        number = births()
        if number == 9:
            os.kill(os.getppid(), signal.SIGTERM)
            drain_with(0)
        os._exit(79 if number % 2 else 0)
        """,
    )
    assert ran.status == 0
    assert ran.ends() == ["status=79 reason=memory", "status=0 reason=done"] * 4 + ["status=0 reason=done"]
    assert ran.log.count("restart=in_0.0_seconds") == 8


def test_how_a_process_ended_in_the_drain_is_how_the_supervisor_ends(tmp_path: Path) -> None:
    ran = Ran(
        tmp_path,
        """
        if births() == 2:
            os.kill(os.getppid(), signal.SIGTERM)
        drain_with(75)
        """,
        processes=2,
    )
    assert ran.status == 75
    assert ran.ends() == ["status=75 reason=unfit"] * 2
    assert ran.log.count("restart=never") == 2


def test_a_second_signal_kills_what_does_not_end(tmp_path: Path) -> None:
    """The process never lets its signals in, as one whose thread holds the interpreter's lock."""
    ran = Ran(
        tmp_path,
        """
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(0.1)
        os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)
        """,
    )
    assert ran.status == Exit.FORCED
    assert ran.ends() == ["signal=SIGKILL"]
    assert ran.log.index("supervisor.draining signal=SIGINT") < ran.log.index("supervisor.killing signal=SIGTERM")


def test_a_child_has_nothing_left_of_its_supervisor(tmp_path: Path) -> None:
    """No handler, no wake-up descriptor, and stop signals blocked until its own handlers stand."""
    ran = Ran(
        tmp_path,
        """
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.set_wakeup_fd(-1) == -1
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGTERM, signal.SIGINT}
        os._exit(0)
        """,
        burst=True,
    )
    assert ran.status == 0
    assert ran.ends() == ["status=0 reason=done"]


# -- before the fork ---------------------------------------------------------------------------------------


def test_threads_that_are_ending_are_waited_for() -> None:
    gate = threading.Event()
    ending = threading.Thread(target=gate.wait, name="ending")
    ending.start()
    threading.Timer(0.1, gate.set).start()
    assert "ending" not in supervisor.other_threads()


def test_threads_that_stay_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "THREADS_END_SECONDS", 0.01)
    gate = threading.Event()
    staying = threading.Thread(target=gate.wait, name="a-client-of-something")
    staying.start()
    try:
        assert "a-client-of-something" in supervisor.other_threads()
    finally:
        gate.set()
        staying.join()


@pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
def test_every_connection_of_django_is_closed() -> None:
    connections["default"].ensure_connection()
    supervisor.close_connections()
    assert connections["default"].connection is None


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is not refused fails the test instead of forking it."""
    for name in ("supervise", "run_worker", "run_reloading", "close_connections"):
        monkeypatch.setattr(runworker, name, lambda *args, **kwargs: None)


@pytest.mark.usefixtures("no_work")
def test_processes_without_fork_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    with pytest.raises(CommandError, match="needs fork"):
        call_command("runworker", "--processes", "2")


@pytest.mark.usefixtures("no_work")
def test_reload_beside_processes_is_refused() -> None:
    with override_settings(DEBUG=True), pytest.raises(CommandError, match="cannot be given beside --processes"):
        call_command("runworker", "--processes", "2", "--reload")


@pytest.mark.usefixtures("no_work")
def test_reload_without_debug_is_refused() -> None:
    with override_settings(DEBUG=False), pytest.raises(CommandError, match="DEBUG"):
        call_command("runworker", "--reload")


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("more", [[], ["--processes", "2"]], ids=["one", "many"])
def test_a_memory_limit_that_is_passed_already_is_refused(more: list[str]) -> None:
    with pytest.raises(CommandError, match=r"--max-memory-mb is 1, and \d+ are used before any job"):
        call_command("runworker", "--max-memory-mb", "1", *more)


@pytest.mark.usefixtures("no_work")
def test_a_fork_beside_threads_is_refused_and_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runworker, "other_threads", lambda: ["exporter"])
    with pytest.raises(CommandError, match="These threads run already, and a fork would lose them: exporter"):
        call_command("runworker", "--processes", "2")


def test_children_that_die_again_and_again_are_told_to_people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runworker, "close_connections", lambda: None)
    monkeypatch.setattr(runworker, "other_threads", list)
    monkeypatch.setattr(runworker, "supervise", lambda *args, **kwargs: Exit.CHILDREN_DIE)
    with pytest.raises(CommandError, match="died soon after their start") as raised:
        call_command("runworker", "--processes", "2")
    assert raised.value.returncode == Exit.CHILDREN_DIE


@pytest.mark.parametrize("number", ["0", "-1", "two"])
def test_a_number_of_processes_that_is_none_is_refused(number: str) -> None:
    with pytest.raises(CommandError, match="--processes"):
        call_command("runworker", "--processes", number)


# -- memory ------------------------------------------------------------------------------------------------


def test_memory_over_the_limit_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recycling, "CHECK_SECONDS", 0.001)
    told: list[str] = []
    watch = MemoryWatch(1, on_over=lambda: told.append("over"))
    watch.start()
    watch.join(10)
    assert watch.is_over
    assert told == ["over"]


@pytest.mark.parametrize("limit_mb", [None, 1_000_000])
def test_memory_below_the_limit_is_not_told(monkeypatch: pytest.MonkeyPatch, limit_mb: int | None) -> None:
    monkeypatch.setattr(recycling, "CHECK_SECONDS", 0.001)
    watch = MemoryWatch(limit_mb, on_over=lambda: pytest.fail("told"))
    watch.start()
    watch.join(0.05)
    watch.stop()
    watch.join(10)
    assert not watch.is_over


GROWING = """
from pgqueue.worker.recycling import resident_mb
before = resident_mb()
held = b"x" * (50 * 1024 * 1024)
print(resident_mb() - before)
"""


def test_memory_that_grows_shows() -> None:
    """In a process of its own: one that has run thousands of tests may have that much to spare."""
    answer = subprocess.run([sys.executable, "-c", GROWING], capture_output=True, text=True, check=True)
    assert 40 < float(answer.stdout) < 60


def test_where_the_system_does_not_tell_the_peak_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    now = resident_mb()
    monkeypatch.setattr(recycling, "STATM", Path("/nowhere/statm"))
    assert resident_mb() > 0.9 * now


# -- statuses ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", MEANINGS, ids=lambda status: status.name)
def test_every_exit_status_is_in_the_help_and_in_the_documentation(status: Exit) -> None:
    help = runworker.Command().create_parser("manage.py", "runworker").format_help()
    assert f"  {status:<4d}{MEANINGS[status]}\n" in help
    assert f"\n| {status:d} |" in (PROJECT / "docs/operating.md").read_text()


def test_every_status_is_an_exit_status_and_no_signal() -> None:
    assert all(0 <= status < 128 for status in Exit)
    assert not {128 + number for number in signal.Signals} & set(Exit)


# -- processes that do not end by themselves ---------------------------------------------------------------

TELL_THE_SUPERVISOR = "os.kill(os.getppid(), signal.SIGTERM)"


def test_a_process_that_is_to_drain_and_does_not_answer_is_killed(tmp_path: Path) -> None:
    """A call in C keeps the interpreter: neither the handler of a signal nor any thread runs."""
    ran = Ran(tmp_path, f"import ctypes; {TELL_THE_SUPERVISOR}; ctypes.PyDLL(None).sleep(25)", deaf_seconds=0.3)
    assert (ran.status, ran.ends()) == (Exit.FORCED, ["signal=SIGKILL"])
    assert "reason=deaf" in ran.log


def test_a_process_that_answers_is_not_killed_however_long_it_drains(tmp_path: Path) -> None:
    ran = Ran(
        tmp_path,
        f"""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        {TELL_THE_SUPERVISOR}
        time.sleep(3)
        os._exit(0)
        """,
        deaf_seconds=0.5,
        linger_seconds=0.5,
    )
    assert (ran.status, ran.ends()) == (Exit.DONE, ["status=0 reason=done"])


def test_a_process_that_has_stopped_and_does_not_end_is_killed_and_replaced(tmp_path: Path) -> None:
    """Nobody has told the supervisor to stop: a process that stopped for its own reason leaves a place empty."""
    ran = Ran(
        tmp_path,
        f"""
        if births() == 1:
            line.say_stopped()
            time.sleep(25)
        {TELL_THE_SUPERVISOR}
        drain_with(0)
        """,
        linger_seconds=0.3,
    )
    assert (ran.status, ran.ends()) == (Exit.DONE, ["signal=SIGKILL", "status=0 reason=done"])
    assert "reason=lingers" in ran.log


def test_a_line_whose_descriptor_has_become_another_file_is_left_alone(tmp_path: Path) -> None:
    """A task may close every descriptor. The next file that is opened gets the number."""
    ours, theirs = open_line()
    worker, supervisor_end = WorkerEnd(theirs, slot=1), SupervisorEnd(ours)
    os.close(theirs)
    (tmp_path / "other").touch()
    reused = os.open(tmp_path / "other", os.O_RDWR)
    try:
        assert reused == theirs
        worker.say_stopped()
        assert (tmp_path / "other").read_bytes() == b""
        supervisor_end.ask_to_stop()
        supervisor_end.listen()
        assert supervisor_end.overdue(deaf_seconds=-1, linger_seconds=-1) is None
    finally:
        os.close(reused)
