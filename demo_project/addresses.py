"""Where the demo's site listens."""

from __future__ import annotations

import contextlib
import http.client
import socket


def free_port(*, preferred: int) -> int | None:
    """Return `preferred` if nobody listens there, else a port that is free now, None without any."""
    for port in (preferred, 0):
        with socket.socket() as probe, contextlib.suppress(OSError):
            # As the site will: a port whose last connections are only just closed counts as free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    return None


def answers(address: str) -> bool:
    """Say whether the site shows its log-in page."""
    connection = http.client.HTTPConnection(address, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/admin/login/")
        return connection.getresponse().status == 200
    return False
