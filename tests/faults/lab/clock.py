"""A server whose clock can be set, by libfaketime, where Debian's package is installed (`make laboratory-tools`)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from demo_project.postgres import Server

LIBRARY = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


class Clock:
    """What the server takes for the time: the machine's, and some seconds."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def set(self, offset_seconds: int) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{offset_seconds:+d}\n")
        fresh.chmod(0o644)
        fresh.replace(self._path)


@contextmanager
def settable_clock(server: Server) -> Iterator[Clock]:
    """Start the server anew under a clock that can be set; afterwards as it was."""
    assert LIBRARY is not None
    directory = Path(tempfile.mkdtemp(prefix="pgc"))
    directory.chmod(0o755)
    clock = Clock(directory / "offset")
    clock.set(0)
    environment = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(directory / "offset"),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    server.cluster.shut_down()
    os.environ.update(environment)
    try:
        server.cluster.bring_up(fsync=True)
    finally:
        for name in environment:
            del os.environ[name]
    try:
        yield clock
    finally:
        server.cluster.shut_down()
        server.cluster.bring_up(fsync=True)
        shutil.rmtree(directory, ignore_errors=True)
