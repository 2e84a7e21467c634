"""A socket between a worker and its server that can lose, hold and cut what goes through it."""

from __future__ import annotations

import contextlib
import select
import socket
import tempfile
import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from django.db import connection

from .harness import database_url

CLAIM = b"SET state = 'running'"
ENDING = b"FROM owned"
ENDING_ALONE = b"mine.lease_losses = 0"
CHUNK = 1 << 16
SYNC = b"S\0\0\0\4"
TRIP_ENDS = (SYNC, SYNC + b"H\0\0\0\4")
"""How the messages of a trip end; the driver may ask at once for what the server has to say."""
IDLE = b"Z\0\0\0\5I"
"""The server is ready, and in no transaction."""


class Fault(Enum):
    """What becomes of a connection at the chosen COMMIT."""

    CUT_BEFORE = "the server never gets the COMMIT, and both ends are closed"
    CUT_AFTER = "the server has committed, its answer is lost, and both ends are closed"
    SILENCE = "the server has committed, its answer is lost, and the connection stays open: half-open"
    HOLD = "the COMMIT is held back, and the connection stays open"


@dataclass
class Plan:
    """One fault to commit at the COMMIT after a statement with a marker in it; it happens once."""

    marker: bytes
    fault: Fault
    happened: threading.Event = field(default_factory=threading.Event)


class Proxy:
    """Listens on a socket in a directory of its own; each connection is served by one thread."""

    def __init__(self, server: Path | None = None) -> None:
        self._server = server
        """The directory of the server's socket; without it, the server of the run's test database."""
        self._flows = threading.Event()
        self._flows.set()
        self._delay_seconds = 0.0
        self._directory = tempfile.TemporaryDirectory(prefix="pgq")
        self.directory = Path(self._directory.name)
        self._listener = socket.socket(socket.AF_UNIX)
        self._open: set[socket.socket] = set()
        self._roles: dict[socket.socket, bytes] = {}
        self._lost: set[socket.socket] = set()
        self._plan: Plan | None = None
        self._lock = threading.Lock()
        self._refusing = False
        self._stopped = False
        self.accepted = 0
        self.asked = 0

    def __enter__(self) -> Proxy:
        self._listener.bind(str(self.directory / ".s.PGSQL.5432"))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopped = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._flows.set()
        self.reset_all()
        self._directory.cleanup()

    def url(self) -> str:
        """Return the URL of the run's test database through this socket."""
        return database_url(socket_directory=self.directory)

    def plan(self, marker: bytes, fault: Fault) -> Plan:
        """Commit a fault at the next COMMIT of a transaction that sent `marker`."""
        self._plan = Plan(marker, fault)
        return self._plan

    def refuse(self, refusing: bool = True) -> None:
        """Close new connections at once, or serve them again."""
        self._refusing = refusing

    def reset_all(self) -> None:
        """Cut every connection."""
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def lose(self, role: str) -> int:
        """Make the connections half-open that a role of the workers has now: what either end sends gets nowhere.

        Return how many there were. New ones are served.
        """
        with self._lock:
            found = {client for client, said in self._roles.items() if f"pgqueue {role}\0".encode() in said}
            self._lost |= found
        return len(found)

    def lose_all(self) -> int:
        """Make every connection half-open that there is now. Return how many there were."""
        with self._lock:
            self._lost |= self._roles.keys()
            return len(self._roles)

    def silence(self, silent: bool = True) -> None:
        """Hold back all that either end sends, on old and new connections, or let it go on."""
        if silent:
            self._flows.clear()
        else:
            self._flows.set()

    def delay(self, seconds: float) -> None:
        """Pass everything on that much later, each way."""
        self._delay_seconds = seconds

    def _hold_back(self) -> None:
        self._flows.wait()
        if self._delay_seconds:
            time.sleep(self._delay_seconds)

    def _accept(self) -> None:
        while not self._stopped:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            if self._refusing:
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, _dial_server(self._server) as server:
            with self._lock:
                self._open |= {client, server}
            try:
                self._carry(client, server)
            finally:
                with self._lock:
                    self._open -= {client, server}
                    self._lost.discard(client)
                    self._roles.pop(client, None)

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        seen = b""
        answered, in_block = True, False
        while True:
            ready, _, _ = select.select([client, server], [], [])
            if server in ready:
                if not (data := server.recv(CHUNK)):
                    return
                self._hold_back()
                if client in self._lost:
                    continue
                client.sendall(data)
                answered = True
            if client in ready:
                if not (data := client.recv(CHUNK)):
                    return
                self._hold_back()
                if client in self._lost:
                    continue
                self._roles.setdefault(client, data)
                self.asked += answered
                answered = False
                seen = (seen + data)[-CHUNK:]
                in_block = in_block or b"BEGIN" in data
                # What comes in one trip is one transaction, committed where the trip ends.
                commits = b"COMMIT" in data or (data.endswith(TRIP_ENDS) and not in_block)
                if not commits and b"ROLLBACK" not in data:
                    server.sendall(data)
                    continue
                plan = self._take_plan(seen) if commits else None
                seen, in_block = b"", False
                if plan is None:
                    server.sendall(data)
                elif not self._break(plan, data, client, server):
                    return

    def _take_plan(self, seen: bytes) -> Plan | None:
        with self._lock:
            plan = self._plan
            if plan is None or plan.marker not in seen:
                return None
            self._plan = None
            return plan

    def _break(self, plan: Plan, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        """Commit the fault; say whether the connection goes on."""
        if plan.fault in (Fault.CUT_AFTER, Fault.SILENCE):
            server.sendall(data)
            _see_committed(client, server)
        plan.happened.set()
        if plan.fault in (Fault.SILENCE, Fault.HOLD):
            _wait_for_end(client)
        return False


def _see_committed(client: socket.socket, server: socket.socket) -> None:
    """Wait until the server tells that it has committed, and carry to it what it waits for: the end of a pipeline."""
    answer = b""
    while IDLE not in answer:
        ready, _, _ = select.select([client, server], [], [])
        if server in ready:
            if not (data := server.recv(CHUNK)):
                return
            answer += data
        if client in ready:
            if not (data := client.recv(CHUNK)):
                return
            server.sendall(data)


def _wait_for_end(client: socket.socket) -> None:
    while client.recv(CHUNK):
        pass


def _dial_server(directory: Path | None) -> socket.socket:
    if directory is not None:
        dialled = socket.socket(socket.AF_UNIX)
        dialled.connect(str(directory / ".s.PGSQL.5432"))
        return dialled
    found: dict[str, Any] = connection.settings_dict
    host = found.get("OPTIONS", {}).get("host") or found["HOST"] or "/tmp"
    port = found["PORT"] or found.get("OPTIONS", {}).get("port") or 5432
    if str(host).startswith("/"):
        dialled = socket.socket(socket.AF_UNIX)
        dialled.connect(f"{host}/.s.PGSQL.{port}")
        return dialled
    return socket.create_connection((host, int(port)))
