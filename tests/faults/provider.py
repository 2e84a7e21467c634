"""A provider within the test that chooses the moment: it reads the stage, and stops the worker that asks."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from pgqueue.protocol.connecting import connect

PATIENCE_SECONDS = 60

T = TypeVar("T")


class Provider:
    """Its ledger, and the one moment at which it acts, on the first time that each cell reaches it.

    `moment` is one of before, inside, after (the call did its work), stored, confirming. `fault` is kill, freeze, drop,
    stall. All cells share a worker, so that one signal serves them all: it waits until each has arrived.
    """

    def __init__(self, *, moment: str, fault: str, cells: set[str]) -> None:
        self.requests: Counter[str] = Counter()
        self.effects: dict[str, list[str]] = defaultdict(list)
        self.stages: list[str | None] = []
        """What was on record when each request for a payment arrived."""
        self.answering = 0
        self.refused: list[str] = []
        self.frozen: int | None = None
        self._moment, self._fault, self._cells = moment, fault, cells
        self._ids: dict[str, str] = {}
        self._fences: dict[int, int] = {}
        self._arrived: set[str] = set()
        self._orders: dict[str, Callable[[], Any]] = {}
        self._orders_done: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._all_here = threading.Event()
        self.go_on = threading.Event()
        self._connection = connect("default", role="provider")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def act_on(self, cell: str, order: Callable[[], T]) -> Callable[[], T]:
        """Do as ordered when the cell comes to the moment for the first time; return how to learn what came of it."""
        self._orders[cell] = order
        return lambda: self._orders_done[cell]

    def close(self) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._connection.close()

    def answer(self, page: str, asked: dict[str, Any]) -> Any:
        """Return what is sent; raise `ConnectionError` to hang up."""
        if page == "find":
            return {"id": self._ids[asked["key"]]} if asked["key"] in self._ids else None
        if page == "pay":
            return self._pay(asked)
        if page == "look":
            self._count(asked)
            self._act("inside", asked)
            self._act("after", asked)
        else:
            self._act(page, asked)
        return {}

    def _pay(self, asked: dict[str, Any]) -> Any:
        self._count(asked)
        self._read_stage(asked["job"])
        self._act("inside", asked)
        refused = self._do(asked)
        self._act("after", asked)
        return {"id": self._ids[asked["key"]]} if not refused else {"error": "fence"}

    def _count(self, asked: dict[str, Any]) -> None:
        with self._lock:
            self.requests[asked["cell"]] += 1

    def _read_stage(self, job: int) -> None:
        with self._lock:
            row = self._connection.execute(
                "SELECT stage FROM pgqueue_effect WHERE job_id = %s AND name = 'pay'", [job]
            ).fetchone()
            self.stages.append(None if row is None else row[0])

    def _do(self, asked: dict[str, Any]) -> bool:
        """Do it, once per key where the cell says that keys are honoured; refuse an old fence where it checks them."""
        with self._lock:
            cell, key = asked["cell"], asked["key"]
            latest = self._fences[asked["job"]] = max(asked["fence"], self._fences.get(asked["job"], 0))
            if asked["fence"] < latest and "fences" in cell:
                self.refused.append(cell)
                return True
            if "keys" in cell and key in self._ids:
                return False
            self._ids[key] = f"p{len(self.effects[cell])}"
            self.effects[cell].append(self._ids[key])
            return False

    def _act(self, moment: str, asked: dict[str, Any]) -> None:
        """Do to the worker what was ordered, when every cell has come to the moment for the first time."""
        cell = asked["cell"]
        if moment == self._moment and cell in self._orders and cell not in self._orders_done:
            self._orders_done[cell] = self._orders[cell]()
            return
        with self._lock:
            if moment != self._moment or cell not in self._cells or cell in self._arrived:
                return
            self._arrived.add(cell)
            is_last = self._arrived == self._cells
        if is_last:
            self._all_here.set()
        assert self._all_here.wait(PATIENCE_SECONDS)
        if self._fault == "drop":
            raise ConnectionError
        if self._fault == "stall":
            assert self.go_on.wait(PATIENCE_SECONDS)
            raise ConnectionError
        if is_last:
            os.kill(asked["pid"], signal.SIGKILL if self._fault == "kill" else signal.SIGSTOP)
            self.frozen = asked["pid"] if self._fault == "freeze" else None
        assert self.go_on.wait(PATIENCE_SECONDS)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with provider._lock:
                    provider.answering += 1
                try:
                    content = json.dumps(provider.answer(self.path.strip("/"), asked)).encode()
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    self.close_connection = True
                finally:
                    with provider._lock:
                        provider.answering -= 1

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
