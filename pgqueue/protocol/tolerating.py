"""Read whatever a row holds, also what was written by hand: Python has fewer years than PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, tzinfo
from functools import cache
from typing import Any

from django.db import connections
from psycopg import DataError
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.postgres import types
from psycopg.pq import Format

from ..bounds import EARLIEST, LATEST

SURELY_PARSED = 500
"""Longest JSON that is not looked at: it has fewer levels than Python's stack, and shorter numbers than Python's."""
UNREADABLE_JSON = '"(JSON that cannot be read here: nested too deeply, or a number that is too long)"'


class FarInstant(datetime):
    """An instant outside of the years 2 to 9998: the nearest that Python can compute with, and what the row holds."""

    text: str = ""

    @classmethod
    def of(cls, text: str, zone: tzinfo | None) -> FarInstant:
        """Return the nearest instant to what PostgreSQL wrote."""
        is_past = text.startswith("-") or text.endswith("BC") or text.startswith("0001-")
        near = cls(EARLIEST.year, 1, 1, tzinfo=zone) if is_past else cls(LATEST.year - 1, 12, 31, tzinfo=zone)
        near.text = text
        return near

    def __str__(self) -> str:
        return self.text

    def __format__(self, spec: str) -> str:
        return self.text

    def isoformat(self, *args: Any, **kwargs: Any) -> str:
        """Return what the row holds."""
        return self.text

    def astimezone(self, tz: tzinfo | None = None) -> FarInstant:
        """Return the same: no zone moves it into the years that there are."""
        return self


@contextmanager
def tolerant(alias: str) -> Iterator[None]:
    """Read rows of Django's connection without an error: far instants as `FarInstant`, unreadable JSON as a text.

    Django's own loaders raise, and with one such row no list that it is on can be read.
    """
    wrapper = connections[alias]
    wrapper.ensure_connection()
    adapters = wrapper.connection.adapters
    before = {name: adapters.get_loader(types[name].oid, Format.TEXT) for name in ("timestamptz", "jsonb")}
    adapters.register_loader("timestamptz", _instants(before["timestamptz"]))
    adapters.register_loader("jsonb", _Document)
    try:
        yield
    finally:
        for name, loader in before.items():
            adapters.register_loader(name, loader)


@cache
def _instants(loader: Any) -> Any:
    class Tolerant(loader):  # type: ignore[misc]
        def load(self, data: Buffer) -> datetime:
            with suppress(DataError, ValueError, OverflowError):
                found: datetime = super().load(data)
                if EARLIEST.year <= found.year < LATEST.year:
                    return found
            return FarInstant.of(bytes(data).decode(errors="replace"), self.timezone)

    return Tolerant


class _Document(Loader):
    """JSON as text, which Django's `JSONField` parses."""

    def load(self, data: Buffer) -> str:
        text = bytes(data).decode()
        if len(text) <= SURELY_PARSED:
            return text
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return UNREADABLE_JSON
        return text
