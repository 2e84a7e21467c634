"""The statements' files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pgqueue.sql
from pgqueue.sql import load, load_all

STATEMENTS = sorted(path.stem for path in Path(pgqueue.sql.__file__).parent.glob("*.sql"))


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_begins_with_its_name_and_holds_no_line_of_comment(name: str) -> None:
    """A tracer names a span after the first word: OpenTelemetry called every statement of the queue `--`."""
    text = load(name)
    assert re.fullmatch(rf"[A-Z]+/\*pgqueue\.{name}\*/", text.split()[0])
    assert [line for line in text.splitlines() if not line.strip() or line.lstrip().startswith("--")] == []


def test_once_all_are_loaded_no_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may have no descriptor left, and its package may have been replaced."""
    load_all()

    def refuse(package: str) -> None:
        raise OSError("Too many open files")

    monkeypatch.setattr(pgqueue.sql, "files", refuse)
    assert "lease_until" in load("renew")
