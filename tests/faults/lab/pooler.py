"""A PgBouncer of the laboratory's own, where Debian's package is installed (`make laboratory-tools`)."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from demo_project.postgres import Server

from ..harness import until

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
CONFIGURATION = """
[databases]
pgqueue = host={sockets} port=5432 dbname=pgqueue
[pgbouncer]
listen_addr =
listen_port = 5432
unix_socket_dir = {directory}
auth_type = trust
auth_file = {directory}/users
pool_mode = {mode}
default_pool_size = {pool_size}
max_client_conn = 200
logfile = {directory}/log
"""


class Pooler:
    """Listens on a socket in a directory of its own."""

    def __init__(self, server: Server, *, mode: str, user: str, pool_size: int = 30) -> None:
        assert PROGRAM is not None
        self._account = server.cluster.installation.account
        self.directory = Path(tempfile.mkdtemp(prefix="pgb"))
        settings = CONFIGURATION.format(
            sockets=server.cluster.sockets, directory=self.directory, mode=mode, pool_size=pool_size
        )
        (self.directory / "ini").write_text(settings)
        (self.directory / "users").write_text(f'"{user}" ""\n')
        if self._account is not None:
            for path in (self.directory, *self.directory.iterdir()):
                os.chown(path, self._account.pw_uid, self._account.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        socket = self.directory / ".s.PGSQL.5432"
        socket.unlink(missing_ok=True)
        account = [] if self._account is None else ["-u", self._account.pw_name]
        assert PROGRAM is not None
        command = [PROGRAM, "-q", *account, str(self.directory / "ini")]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(socket.exists, within_seconds=10, what="PgBouncer listens")

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
