"""A simulated provider with a memory and a temper: `python -m demo_project.provider --ledger FILE`.

`POST /messages` sends one message, `POST /payments` pays once, `POST /checks` looks whether an account is open.
JSON body: `to`, `text` (a payment's are its account and its cents). Headers: `Idempotency-Key`; optional are
`X-Fence` (the job's fence) and `X-Worker-Pid` (whom to signal when this request is the one). What goes wrong with a
payment its account says: `acct-7.hangs-up`, `.loses`, `.kills`. `GET /messages/KEY` and `GET /payments/KEY` answer
what was done under a key, or 404.
`POST /_control` changes the faults (the fields of `Faults`), `GET /_control` shows them with the counts.

It is a process of its own and listens on this machine only. Everything it receives and does goes to its
ledger, from which a restarted provider also learns the keys it has already honoured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import urllib.parse
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from demo_project.faults import Faults
from demo_project.provider_core import Kind, Provider, Reply, Request


def main(argv: list[str] | None = None) -> None:
    options = vars(_parser().parse_args(argv))
    port, ledger = options.pop("port"), options.pop("ledger")
    try:
        provider = Provider(ledger, Faults(**options))
    except ValueError as error:
        sys.exit(f"provider: {error}")
    server = Server(port, provider)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # The first and only line on standard output: with --port 0 the starter learns the address from it.
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m demo_project.provider")
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes any free port")
    parser.add_argument("--ledger", type=Path, required=True, help="JSON-lines file, appended to")
    parser.add_argument("--seed", type=int, default=Faults.seed)
    parser.add_argument("--latency-seconds", type=float, default=0.0, help="mean; each varies by half")
    parser.add_argument("--throttle-rate", type=float, default=0.0, help="share that gets 429, nothing sent")
    parser.add_argument("--retry-after-seconds", type=int, default=Faults.retry_after_seconds)
    parser.add_argument("--error-rate", type=float, default=0.0, help="share that gets 503, nothing sent")
    parser.add_argument("--drop-rate", type=float, default=0.0, help="share that is sent, then hung up on")
    parser.add_argument("--no-idempotency", dest="idempotency", action="store_false", help="ignore the keys")
    parser.add_argument("--fence-check", action="store_true", help="refuse a fence below one seen before")
    parser.add_argument("--kill-on-request", type=int, metavar="N", help="signal the worker of request N")
    parser.add_argument("--kill-key-prefix", default="", help="... or of the first after N with such a key")
    parser.add_argument("--kill-moment", choices=("before", "after"), default="after", help="the sending")
    parser.add_argument("--kill-signal", choices=("SIGKILL", "SIGSTOP"), default="SIGKILL")
    return parser


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, port: int, provider: Provider) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.provider = provider


class Handler(BaseHTTPRequestHandler):
    """HTTP in, HTTP out; decides nothing."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        page, _, key = self.path.strip("/").partition("/")
        if key and page in ("messages", "payments"):
            self._respond(self.server.provider.look_up(urllib.parse.unquote(key)))
        else:
            self._respond(self._control({}) if self.path == "/_control" else _NO_SUCH_PAGE)

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pages: dict[str, Callable[[dict[str, Any]], Reply | None]] = {
            "/messages": partial(self._request, "message"),
            "/payments": partial(self._request, "payment"),
            "/checks": partial(self._request, "check"),
            "/_control": self._control,
        }
        page = pages.get(self.path)
        self._respond(_NO_SUCH_PAGE if page is None else _opened(page, content))

    def _request(self, kind: Kind, body: dict[str, Any]) -> Reply | None:
        fence, pid = self.headers.get("X-Fence"), self.headers.get("X-Worker-Pid")
        request = Request(
            to=str(body.get("to", "")),
            text=str(body.get("text", "")),
            key=self.headers.get("Idempotency-Key", ""),
            fence=None if fence is None else int(fence),
            worker_pid=None if pid is None else _killable(int(pid)),
            kind=kind,
        )
        return self.server.provider.answer(request)

    def _control(self, body: dict[str, Any]) -> Reply:
        return Reply(200, self.server.provider.control(body))

    def _respond(self, reply: Reply | None) -> None:
        if reply is None:
            self.close_connection = True
            return
        try:
            self._write(reply, json.dumps(reply.body).encode())
        except ConnectionError:  # the worker is gone, perhaps by our own hand
            self.close_connection = True

    def _write(self, reply: Reply, content: bytes) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if reply.retry_after_seconds is not None:
            self.send_header("Retry-After", str(reply.retry_after_seconds))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: the ledger is the log."""


_NO_SUCH_PAGE = Reply(404, {"error": "no such page"})


def _opened(page: Callable[[dict[str, Any]], Reply | None], content: bytes) -> Reply | None:
    """Call the page with the decoded body; what it cannot read or accept is the client's error."""
    try:
        body = json.loads(content)
        if not isinstance(body, dict):
            raise TypeError("the body must be a JSON object")
        return page(body)
    except (ValueError, TypeError) as error:
        return Reply(400, {"error": str(error)})


def _killable(pid: int) -> int:
    """Refuse what `os.kill` would take for a group, for init or for the provider itself."""
    if pid <= 1 or pid == os.getpid():
        raise ValueError(f"X-Worker-Pid {pid} is no worker")
    return pid


if __name__ == "__main__":
    main()
