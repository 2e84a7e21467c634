"""The statements' files."""

from __future__ import annotations

import pytest

import pgqueue.sql
from pgqueue.sql import load, load_all


def test_once_all_are_loaded_no_file_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker may have no descriptor left, and its package may have been replaced."""
    load_all()

    def refuse(package: str) -> None:
        raise OSError("Too many open files")

    monkeypatch.setattr(pgqueue.sql, "files", refuse)
    assert "lease_until" in load("renew")
