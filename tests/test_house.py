"""The rules of the house that no linter knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pgqueue

PACKAGE = Path(pgqueue.__file__).parent
MODULES = [path for path in PACKAGE.rglob("*.py") if "migrations" not in path.parts]
STATEMENTS = sorted(PACKAGE.glob("sql/*.sql"))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_is_longer_than_three_hundred_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 320


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_function_is_longer_than_fifty_lines(path: Path) -> None:
    lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions(path)}
    assert {name: length for name, length in lengths.items() if length > 50} == {}


def test_only_the_protocol_opens_a_cursor() -> None:
    # `super().execute(` is that of a management command.
    opens = re.compile(r"\.cursor\(|(?<!super\(\))\.execute\(")
    elsewhere = [path for path in MODULES if "protocol" not in path.parts and opens.search(path.read_text())]
    assert elsewhere == []


def test_no_line_is_logged_by_a_logger_that_raises() -> None:
    """`logs` guards each call; `signalling` asks Django's logger."""
    direct = re.compile(r"logging\.getLogger\(")
    found = {path.stem for path in MODULES if direct.search(path.read_text())}
    assert found == {"logs", "signalling"}


def test_no_line_holds_a_traceback() -> None:
    """A traceback ends in the exception's message, which may hold arguments. `worker.waiting` is of an import."""
    traces = re.compile(r"logger\.exception\(|exc_info=")
    assert [path.stem for path in MODULES if traces.search(path.read_text())] == ["recycling"]


def test_nobody_saves_a_row() -> None:
    writes = re.compile(r"\.(save|create|bulk_create|get_or_create|update_or_create|delete)\(")
    found = [path.stem for path in MODULES if writes.search(path.read_text())]
    assert found == ["pgqueue_console_groups"]  # Groups of users are Django's rows.


@pytest.mark.parametrize("path", STATEMENTS, ids=lambda path: path.stem)
def test_every_statement_has_a_header_and_is_one_statement(path: Path) -> None:
    text = path.read_text()
    body = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("--"))
    assert text.startswith("-- ")
    assert ";" not in body


@pytest.mark.parametrize("path", STATEMENTS, ids=lambda path: path.stem)
def test_no_statement_selects_star_or_uses_a_frozen_or_running_clock(path: Path) -> None:
    body = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("--"))
    assert not re.search(r"SELECT\s+\*|RETURNING\s+\*|\bnow\(\)|clock_timestamp|CURRENT_TIMESTAMP", body)


@pytest.mark.parametrize("path", STATEMENTS, ids=lambda path: path.stem)
@pytest.mark.case("C18")
def test_no_statement_leaves_session_state_behind(path: Path) -> None:
    """But one, which is sent on connections of our own alone, and not behind a pooler: see `test_surroundings`."""
    if path.stem != "default_to_read_committed":
        assert not re.search(r"pg_(try_)?advisory_lock|\bSET SESSION\b|set_config\([^)]*false\)", path.read_text())


def test_every_statement_is_loaded_somewhere() -> None:
    sources = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    named = set(re.findall(r'"([a-z_]+)"', sources))
    kinds = {f"{verb}_{kind}" for verb in ("ensure", "lock") for kind in ("job", "queue", "limit", "request", "worker")}
    assert {path.stem for path in STATEMENTS} - named - kinds == set()


def test_no_statement_moves_running_rows_without_an_owner_or_a_lock() -> None:
    """There is no blanket reset of running jobs: whatever leaves `running` names a fence or an expired lease."""
    for path in STATEMENTS:
        text = path.read_text()
        if (
            "UPDATE pgqueue_job" in text
            and re.search(r"SET\s+state = ", text)
            and "'running'" in text.split("SET", 1)[1]
        ):
            assert re.search(r"fence|lease_until|version_seen", text), path.name
