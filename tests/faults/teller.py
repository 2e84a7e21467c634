"""A provider for storms: slow, hanging up at random, and with a ledger of what was asked and what was done."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Teller:
    """Does what it is asked for as often as it is asked, but for keys that are to be kept. It can be away."""

    def __init__(self, *, slowest_seconds: float = 0.0, hangs_up: float = 0.0, seed: int = 1) -> None:
        self.requests: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self._slowest_seconds = slowest_seconds
        self._hangs_up = hangs_up
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._server: _Server | None = None
        with _Server(("127.0.0.1", 0), self._handler()) as reserved:
            self._port = reserved.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def come(self) -> None:
        """Answer from now on; before, connections are refused."""
        self._server = _Server(("127.0.0.1", self._port), self._handler())
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def leave(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _do(self, key: str, keep: bool) -> dict[str, str]:
        """Return what was done. Raise `ConnectionError`, before or after it, to hang up."""
        with self._lock:
            self.requests[key] += 1
            seconds, chance = self._random.uniform(0, self._slowest_seconds), self._random.random()
        time.sleep(seconds)
        if chance < self._hangs_up / 2:
            raise ConnectionError
        with self._lock:
            if not (keep and self.effects[key]):
                self.effects[key] += 1
        if chance < self._hangs_up:
            raise ConnectionError
        return {"id": f"done-{key}"}

    def _find(self, key: str) -> dict[str, str] | None:
        return {"id": f"done-{key}"} if self.effects[key] else None

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        teller = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    if self.path == "/find":
                        answer: Any = teller._find(asked["key"])
                    else:
                        answer = teller._do(asked["key"], asked["keep"])
                    content = json.dumps(answer).encode()
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
