"""What really happened, kept outside the database: one file, one fsynced line for each event."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Entry:
    """One line: the kind of event, when it happened by the machine's clock, and its facts."""

    kind: str
    at: float
    facts: dict[str, Any] = field(default_factory=dict)


def note(path: str | Path, kind: str, **facts: Any) -> None:
    """Append one line, and wait until it is on disk."""
    note_all(path, kind, [facts])


def note_all(path: str | Path, kind: str, events: Iterable[dict[str, Any]]) -> None:
    """Append one line for each event, all in one write, so that lines of many processes never mix."""
    lines = "".join(json.dumps({"kind": kind, "at": time.time(), **facts}) + "\n" for facts in events)
    ledger = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(ledger, lines.encode())
        os.fsync(ledger)
    finally:
        os.close(ledger)


def read(path: str | Path) -> list[Entry]:
    """Return all entries in the order they were written. A line cut by a kill cannot be there: a write is whole."""
    if not Path(path).exists():
        return []
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return [Entry(line.pop("kind"), line.pop("at"), line) for line in lines]
