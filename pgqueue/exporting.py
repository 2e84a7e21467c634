"""A list as CSV or as JSON lines: so many rows at most, page by page, and on record."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .actors import Actor
from .protocol import operating
from .protocol.connecting import job_alias
from .protocol.operating import AuditRow
from .states import Outcome

EXPORT_PERMISSION = "export_job"
MOST_ROWS = 50_000
FORMATS = {"csv": "text/csv; charset=utf-8", "ndjson": "application/x-ndjson"}

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A spreadsheet would run what begins so as a formula; the last four are full-width, which some take for the others."""

Rows = Iterator[Mapping[str, Any]]


def record(kind: str, *, actor: Actor, asked: Mapping[str, Any], outcome: Outcome) -> int:
    """Write down that somebody exports a list of this kind of target, or tried to; return the audit row's id."""
    row = AuditRow(
        verb="export",
        target_kind=kind,
        outcome=str(outcome),
        actor_id=actor.id,
        actor_name=operating.text(actor.name),
        params=dict(asked),
        facts={},
    )
    return operating.audit(job_alias(), [row])[0]


def pages(read: Callable[[Any, int], Sequence[Mapping[str, Any]]], *, size: int = 1_000) -> Rows:
    """Yield rows by pages: `read` returns those after a row (None: from the beginning), so many at most."""
    last, left = None, MOST_ROWS
    while left > 0:
        page = read(last, min(size, left))
        yield from page
        if len(page) < min(size, left):
            return
        last, left = page[-1], left - len(page)


def written(rows: Rows, columns: Sequence[str], *, format: str) -> Iterator[str]:
    """Yield the text of an export, line by line; values are codes and ISO instants, whatever the language."""
    if format == "ndjson":
        for row in rows:
            told = {name: row[name] for name in columns}
            yield json.dumps(told, default=_plain, ensure_ascii=False) + "\n"
        return
    yield _line(columns)
    for row in rows:
        yield _line([_cell(row[name]) for name in columns])


def _plain(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else _plain(value)
    return f"'{text}" if text.startswith(FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    return text.removeprefix("-").replace(".", "", 1).isdecimal()


def _line(cells: Sequence[str]) -> str:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue()
