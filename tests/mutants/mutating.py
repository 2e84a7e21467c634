"""Statements with a guard cut out, loaded in place of the real ones."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import psycopg

import pgqueue.sql

DIRECTORY = Path(pgqueue.sql.__file__).parent


@dataclass(frozen=True)
class Sessions:
    """What a scenario works with. With one session there is no `other`, and no waiting to be seen."""

    main: psycopg.Connection[Any]
    other: psycopg.Connection[Any] | None = None
    in_background: Callable[..., Any] | None = None
    wait_until_blocking: Callable[[psycopg.Connection[Any]], None] | None = None
    watching: psycopg.Connection[Any] | None = None

    def ends_or_waits(self, future: Future[Any]) -> str:
        """Say which comes first: that the work is done, or that the main session waits for a lock."""
        assert self.watching is not None
        query, pid = "SELECT cardinality(pg_blocking_pids(%s)) > 0", self.main.info.backend_pid
        while not future.done():
            if self.watching.execute(query, [pid]).fetchone() == (True,):
                return "waits"
            wait([future], timeout=0.005)
        return "ended"


@dataclass(frozen=True)
class Mutant:
    """One guard of one statement, how to cut it out, and the scenario that notices.

    `changes` are pairs of old and new text; `others` the same for further statements, where a second line of
    defence would hide the hole.
    """

    statement: str
    guard: str
    changes: tuple[tuple[str, str], ...]
    scenario: Callable[[Sessions], None]
    others: Mapping[str, tuple[tuple[str, str], ...]] | None = None

    def __str__(self) -> str:
        return f"{self.statement}-{self.guard}-{self.scenario.__name__}"

    def texts(self) -> dict[str, str]:
        """Return the mutated text of each statement. A change that matches nothing is a mistake in the table."""
        changed = {self.statement: self.changes, **(self.others or {})}
        return {name: _replaced(name, changes) for name, changes in changed.items()}


def _replaced(name: str, changes: tuple[tuple[str, str], ...]) -> str:
    text = (DIRECTORY / f"{name}.sql").read_text(encoding="utf-8")
    header = re.match(r"(?:--.*\n)*", text)
    assert header is not None
    body = text[header.end() :]
    for old, new in changes:
        found = re.sub(r"\s+", r"\\s+", re.escape(old).replace(r"\ ", " "))
        body, count = re.subn(found, lambda match, new=new: new, body)
        assert count, f"{name}.sql has no {old!r}"
    return header[0] + body


@contextmanager
def loaded(texts: Mapping[str, str]) -> Iterator[None]:
    """Let `pgqueue.sql.load` find these texts, and all others as they are."""
    with TemporaryDirectory() as directory:
        shutil.copytree(DIRECTORY, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        for name, text in texts.items():
            Path(directory, f"{name}.sql").write_text(text, encoding="utf-8")
        with patch.object(pgqueue.sql, "files", lambda package: Path(directory)):
            pgqueue.sql.load.cache_clear()
            try:
                yield
            finally:
                pgqueue.sql.load.cache_clear()


def prepare(connection: psycopg.Connection[Any], text: str) -> None:
    """Let the server parse and analyse a statement with its parameters."""
    names: list[str] = []

    def numbered(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    statement = re.sub(r"%\((\w+)\)s", numbered, text).encode()
    result = connection.pgconn.prepare(b"", statement)
    assert result.status == psycopg.pq.ExecStatus.COMMAND_OK, result.error_message


def guard_of(name: str) -> str:
    """Return the first sentence after `Guard:` in a statement's header, or nothing."""
    text = (DIRECTORY / f"{name}.sql").read_text(encoding="utf-8")
    header = " ".join(line[2:].strip() for line in text.splitlines() if line.startswith("--"))
    found = re.search(r"Guard: (.*?)(?:\.(?=\s|$))", header)
    return found[1] if found else ""
