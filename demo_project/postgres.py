"""Run a PostgreSQL of the project's own for the demo, the tests and the benchmarks.

`running(name)` serves a block, `start(name)` a long-lived owner, and the command line another program:

    python -m demo_project.postgres --name tests --no-fsync --run python -m pytest

Each name has a server of its own, shared by every program that asks for it; the last one to leave stops it.
The data stay in the system's directory for temporary files until the project's migrations change. The server
listens on a socket only, in a directory that no other account can enter: hence `trust`.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from demo_project.cluster import DATABASE, Cluster
from demo_project.installation import PostgresError, find_installation

__all__ = ["PostgresError", "Server", "running", "start"]

PROJECT = Path(__file__).resolve().parent.parent
# A socket's path has room for 103 bytes on macOS and 107 on Linux, its own name included.
LONGEST_SOCKET_DIRECTORY = 80
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Server:
    """One share in a running server; `share` is the file whose lock says so."""

    cluster: Cluster
    share: BinaryIO
    owner_pid: int

    @property
    def url(self) -> str:
        return self.cluster.url

    @property
    def data(self) -> Path:
        return self.cluster.data

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs to find the database, and the server's own programs, such as `createdb`."""
        programs = str(self.cluster.installation.programs)
        return {
            "DATABASE_URL": self.url,
            "PGHOST": str(self.cluster.sockets),
            "PGUSER": DATABASE,
            "PATH": os.pathsep.join((programs, os.environ.get("PATH", os.defpath))),
        }

    def stop(self) -> None:
        """Give the share back, and stop the server if it was the last. Does nothing twice, nor in a forked child."""
        if self.share.closed or self.owner_pid != os.getpid():
            return
        with _exclusively(self.cluster.home), self.share:
            if _is_last(self.share):
                self.cluster.shut_down()


@contextlib.contextmanager
def running(name: str, *, fsync: bool = True) -> Iterator[str]:
    """Yield the URL of a database: DATABASE_URL where that is set, else of the embedded server `name`."""
    if url := os.environ.get("DATABASE_URL"):
        yield url
        return
    server = start(name, fsync=fsync)
    try:
        yield server.url
    finally:
        server.stop()


def start(name: str, *, fsync: bool = True) -> Server:
    """Start the embedded server `name`, or join those who use it, whatever DATABASE_URL says.

    Every call is a share of its own, to be stopped on its own; a call after the postmaster was killed brings it
    up again. `fsync=False` is for data that may be lost when the machine stops.
    """
    cluster = _find_cluster(name)
    server = Server(cluster, _open_lock(cluster.home / "use.lock"), os.getpid())
    try:
        with _exclusively(cluster.home):
            fcntl.flock(server.share, fcntl.LOCK_SH)
            cluster.bring_up(fsync=fsync)
    except BaseException:
        server.stop()
        raise
    return server


def _find_cluster(name: str) -> Cluster:
    """Find the programs, and the directory named by all that its files depend on."""
    if not re.fullmatch(r"[a-z]{1,12}", name):
        raise PostgresError(f"{name!r} is no name for a server: take up to 12 small letters.")
    installation = find_installation()
    account = installation.account
    identity = f"{PROJECT}\0{os.geteuid()}\0{account.pw_name if account else ''}"
    digest = hashlib.sha256(os.fsencode(identity)).hexdigest()[:8]
    home = _temporary_directory() / f"pgqueue-{digest}-{name}{installation.major}"
    cluster = Cluster(home, installation, _schema())
    if len(os.fsencode(cluster.sockets)) > LONGEST_SOCKET_DIRECTORY:
        raise PostgresError(f"{cluster.sockets} is too long for a socket: set TMPDIR to a shorter directory.")
    # The account that root runs the server as has to pass through.
    _make_own_directory(home, mode=0o711 if account else 0o700)
    return replace(cluster, installation=installation.usable_from(home))


def _schema() -> str:
    """Return a digest of every migration here: no release is out, so that they may be edited in place."""
    digest = hashlib.sha256()
    for package in ("pgqueue", "demo_project"):
        for path in sorted((PROJECT / package).rglob("migrations/*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _temporary_directory() -> Path:
    """Prefer the directory that survives a reboot: a warm start takes a tenth of a cold one."""
    lasting = Path("/var/tmp")
    return lasting if os.access(lasting, os.W_OK | os.X_OK) else Path(tempfile.gettempdir()).resolve()


def _make_own_directory(path: Path, *, mode: int) -> None:
    """Create a directory where everyone may write, or refuse what somebody else put there."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PostgresError(f"{path} is a link, or somebody else's: remove it, and start again.")
    path.chmod(mode)


@contextlib.contextmanager
def _exclusively(home: Path) -> Iterator[None]:
    """Keep every other program from starting or stopping this server meanwhile."""
    with _open_lock(home / "start.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _open_lock(path: Path) -> BinaryIO:
    return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "rb")


def _is_last(share: BinaryIO) -> bool:
    """Tell whether nobody else holds a share; the kernel has dropped those of killed processes."""
    try:
        fcntl.flock(share, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo_project.postgres", description=__doc__.partition("\n")[0])
    parser.add_argument("--name", default="demo", help="which server: each name has data of its own")
    parser.add_argument("--no-fsync", action="store_true", help="faster, but lost when the machine stops")
    parser.add_argument("--run", nargs=argparse.REMAINDER, required=True, metavar="CMD", help="gets DATABASE_URL")
    options = parser.parse_args()
    if not options.run:
        parser.error("--run needs a command")
    try:
        return _run_with_database(options.run, name=options.name, fsync=not options.no_fsync)
    except PostgresError as error:
        print(f"postgres: {error}", file=sys.stderr)
        return 1


def _run_with_database(command: Sequence[str], *, name: str, fsync: bool) -> int:
    """Run the command, pass signals on to it, stop the server after it, and return its status as a shell does."""
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def forward(signum: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(signum)
        elif not (signum == signal.SIGINT and _is_in_foreground()):
            child.send_signal(signum)

    handled = [each for each in FORWARDED if signal.getsignal(each) is not signal.SIG_IGN]
    for each in handled:
        signal.signal(each, forward)
    server = None if os.environ.get("DATABASE_URL") else start(name, fsync=fsync)
    try:
        if early:
            return 128 + early[0]
        environment = {**os.environ, **server.environment} if server else None
        # The child holds the share too, so that the server outlives us if we are killed.
        shares = [server.share.fileno()] if server else []
        child = subprocess.Popen(command, env=environment, pass_fds=shares)
        for signum in early:
            child.send_signal(signum)
        status = child.wait()
    except OSError as error:
        raise PostgresError(f"{command[0]} does not run: {error}") from error
    finally:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        if server:
            server.stop()
    return status if status >= 0 else 128 - status


def _is_in_foreground() -> bool:
    """Tell whether Ctrl-C at the terminal reaches the child directly."""
    return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()


if __name__ == "__main__":
    sys.exit(main())
