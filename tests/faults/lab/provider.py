"""The other side of the laboratory: slow, hanging up at random, and with every request and effect on the ledger."""

from __future__ import annotations

import json
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from .ledger import note


class Provider:
    """Do what is asked as often as it is asked, except where the caller wants its key to be kept.

    With `fences`, refuse a request whose fence is older than one seen before for the same effect: the only thing that
    helps against a request that a frozen worker sends after all is over.
    """

    def __init__(
        self, ledger: Path, *, slowest_seconds: float = 1.0, hangs_up: float = 0.01, fences: bool = False
    ) -> None:
        self._ledger = ledger
        self._slowest_seconds, self._hangs_up, self._checks_fences = slowest_seconds, hangs_up, fences
        self._random = random.Random(13)
        self._done: dict[str, str] = {}
        self._fences: dict[str, int] = {}
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, page: str, asked: dict[str, Any]) -> Any:
        """Return what is sent; raise `ConnectionError` to hang up, before or after the work."""
        if page == "find":
            return {"id": self._done[asked["key"]]} if asked["key"] in self._done else None
        note(self._ledger, "request", **asked)
        chance = self._random.random()
        time.sleep(self._random.uniform(0, self._slowest_seconds))
        if chance < self._hangs_up / 2:
            raise ConnectionError
        answer = self._do(asked)
        if chance < self._hangs_up:
            raise ConnectionError
        return answer

    def _do(self, asked: dict[str, Any]) -> dict[str, str]:
        key = asked["key"]
        with self._lock:
            latest = self._fences[key] = max(asked["fence"], self._fences.get(key, 0))
            if self._checks_fences and asked["fence"] < latest:
                note(self._ledger, "refused", **asked)
                return {"error": "fence"}
            if asked["keep"] and key in self._done:
                return {"id": self._done[key]}
            note(self._ledger, "effect", **asked)
            self._done[key] = f"done-{key}"
            return {"id": self._done[key]}


def _handler(provider: Provider) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                content = json.dumps(provider.answer(self.path.strip("/"), asked)).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
            except (OSError, ValueError):
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A worker that was killed in the middle of a request is nothing to report."""
