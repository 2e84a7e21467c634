"""Bring up and shut down the PostgreSQL of one data directory.

Nothing here may run twice at a time for one directory: `postgres.py` holds its lock meanwhile.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from demo_project.installation import Installation, PostgresError

DATABASE = "pgqueue"
GONE_SECONDS = 10
START_SECONDS = 60


@dataclass(frozen=True)
class Cluster:
    """One data directory, and the programs that fit it; data made for another `schema` are thrown away."""

    home: Path
    installation: Installation
    schema: str = ""

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def sockets(self) -> Path:
        return self.home / "run"

    @property
    def log(self) -> Path:
        return self.sockets / "postgres.log"

    @property
    def url(self) -> str:
        return f"postgresql://{DATABASE}@/{DATABASE}?host={self.sockets}"

    def bring_up(self, *, fsync: bool) -> None:
        if self._postmaster_pid() is None and self._is_outdated():
            shutil.rmtree(self.data, ignore_errors=True)
        if not self.data.exists():
            self._initialise(fsync=fsync)
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            if self._postmaster_pid() is None:
                self._launch(fsync=fsync, deadline=deadline)
            elif time.monotonic() > deadline:
                raise PostgresError(f"The server in {self.data} accepts no connections; its log is {self.log}.")
            time.sleep(0.05)
        self._check_fsync(fsync=fsync)

    def shut_down(self) -> None:
        stop = ("pg_ctl", "stop", "-w", "-D", str(self.data), "-m")
        pid = self._postmaster_pid()
        if pid is not None:
            self._run(*stop, "fast")
        if self._postmaster_pid() is not None:
            self._must(*stop, "immediate")
        if pid is not None:
            _wait_until_gone(pid, of=str(self.data))
        self._forget_postmaster()

    def _initialise(self, *, fsync: bool) -> None:
        """Create the data directory under another name first: an interrupted `initdb` leaves no half of one."""
        fresh = self.home / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        self._make_directory(fresh)
        locale = "C.UTF-8" if sys.platform == "linux" else "C"
        options = [
            "-A",
            "trust",
            "-E",
            "UTF8",
            f"--locale={locale}",
            "-U",
            DATABASE,
            *([] if fsync else ["-N"]),
        ]
        self._must("initdb", *options, "-D", str(fresh))
        self._must("postgres", "--single", "-D", str(fresh), "template1", stdin=f"CREATE DATABASE {DATABASE};\n")
        self._stamp.write_text(self.schema)
        fresh.rename(self.data)

    @property
    def _stamp(self) -> Path:
        return self.home / "schema"

    def _is_outdated(self) -> bool:
        """Tell whether the migrations have changed since: a database that has run them would not run them again."""
        return not self._stamp.exists() or self._stamp.read_text() != self.schema

    def _launch(self, *, fsync: bool, deadline: float) -> None:
        self._forget_postmaster()
        self._make_directory(self.sockets)
        self.log.unlink(missing_ok=True)
        settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.sockets),
            "max_connections": "200",
            "shared_preload_libraries": "pg_stat_statements",
            "autovacuum": "on",
            "fsync": "on" if fsync else "off",
        }
        options = shlex.join(part for key, value in settings.items() for part in ("-c", f"{key}={value}"))
        # With a log of its own, the postmaster does not keep the pipe open that we read to its end.
        wait = ("-w", "-t", str(START_SECONDS), "-l", str(self.log))
        started = self._run("pg_ctl", "start", *wait, "-D", str(self.data), "-o", options)
        if started.returncode and not self._may_retry(deadline):
            raise PostgresError(f"PostgreSQL did not start: {started.stdout}\n{self._log_tail()}")

    def _may_retry(self, deadline: float) -> bool:
        """Tell whether only the sessions of a killed postmaster stand in the way: they end by themselves."""
        return "is still in use" in self._log_tail() and time.monotonic() < deadline

    def _check_fsync(self, *, fsync: bool) -> None:
        found = "fsync=off" not in (self.data / "postmaster.opts").read_text()
        if found != fsync:
            raise PostgresError(
                f"The server in {self.home} is in use with fsync {'on' if found else 'off'}: take another name,"
                " or end the programs that use it."
            )

    def _is_ready(self) -> bool:
        return self._run("pg_isready", "-q", "-h", str(self.sockets)).returncode == 0

    def _postmaster_pid(self) -> int | None:
        """Return the pid of the living postmaster.

        The pid file alone proves nothing: its pid may be another program's by now, and where PID 1 reaps nobody
        a killed postmaster stays as a zombie, which has no command line.
        """
        try:
            pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        except (FileNotFoundError, ValueError, IndexError):
            return None
        return pid if str(self.data) in _command_line(pid) else None

    def _forget_postmaster(self) -> None:
        """Remove what a dead postmaster left, since PostgreSQL believes in any living process of that pid.

        Sessions that outlived it stay safe: a new postmaster finds their shared memory by the data directory's
        inode, and refuses to start beside them.
        """
        for left in (self.data / "postmaster.pid", *self.sockets.glob(".s.PGSQL.*")):
            left.unlink(missing_ok=True)

    def _log_tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""

    def _make_directory(self, path: Path) -> None:
        path.mkdir(mode=0o700, exist_ok=True)
        if account := self.installation.account:
            os.chown(path, account.pw_uid, account.pw_gid)

    def _must(self, program: str, *arguments: str, stdin: str = "") -> None:
        done = self._run(program, *arguments, stdin=stdin)
        if done.returncode:
            raise PostgresError(f"{program} failed ({done.returncode}): {done.stdout}")

    def _run(self, program: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return self.installation.run(program, *arguments, cwd=self.home, stdin=stdin)


def _wait_until_gone(pid: int, *, of: str) -> None:
    """Wait for the moment between the end of the pid file, which ends `pg_ctl`, and that of the process."""
    deadline = time.monotonic() + GONE_SECONDS
    while of in _command_line(pid) and time.monotonic() < deadline:
        time.sleep(0.01)


def _command_line(pid: int) -> str:
    """Return a living process's command line, "" for a zombie and for none.

    `/proc/<pid>/cwd` would say more, but root in a container may not read another account's.
    """
    if Path("/proc/self/cmdline").exists():
        try:
            return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes())
        except OSError:
            return ""
    return subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True).stdout
