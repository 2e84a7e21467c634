"""Fixtures of the fault tests: everything that a test started is ended with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .harness import Database, Journal, Workers
from .proxy import Proxy


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    directory = tmp_path / "journal"
    directory.mkdir()
    return Journal(directory)


@pytest.fixture
def database(transactional_db: None) -> Iterator[Database]:
    database = Database()
    yield database
    database.connection.close()


@pytest.fixture
def workers(database: Database, journal: Journal, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(tmp_path)
    yield workers
    for gate in ("go", "import"):
        journal.open(gate)
    workers.end_all()


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[Proxy]:
    with Proxy() as proxy:
        yield proxy
