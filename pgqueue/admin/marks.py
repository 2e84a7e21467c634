"""The console's words as markup: a state's sign and colour, and beside it the word that commands have for it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.utils.html import format_html, format_html_join

from ..states import State
from .words import NOTHING, SCHEDULED, STATES


def text_of(field: str, label: Any) -> Any:
    """Return a column of the admin that shows a field under a heading of the console's.

    A number is shown as it is typed: ids, fences and versions are copied, and are never grouped by thousands.
    """

    @admin.display(description=label)
    def column(row: Any) -> Any:
        value = getattr(row, field)
        if value is None:
            return NOTHING
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value

    # The admin makes the cell's class of it.
    column.__name__ = field
    return column


def badge(state: str) -> Any:
    """Return a job's state as sign and words, with a class for its colour, and its technical word."""
    sign, words = STATES.get(state, ("", state))
    shown = state if state in STATES else "other"
    return format_html(
        '<span class="pgqueue-state pgqueue-{}"><span aria-hidden="true">{}</span>\u00a0{}</span>{}',
        shown,
        sign,
        words,
        beside(words, State.PENDING.value if state == SCHEDULED else state),
    )


def state_of(job: Any) -> Any:
    """Return the state of a job that was read with the database's `now`; pending is ready, or scheduled for later."""
    later = job.state == State.PENDING and job.run_at > job.now
    return badge(SCHEDULED if later else job.state)


def beside(words: Any, code: str) -> Any:
    """Return the word that commands, searches and the database have; nothing where it is the same."""
    return "" if str(words).casefold() == code else format_html(' <code class="pgqueue-code">{}</code>', code)


def both(words: Any, code: str) -> Any:
    """Return the console's words and those of commands."""
    return format_html("{}{}", words, beside(words, code))


def short_path(path: str) -> Any:
    """Return a dotted path as its last name over the rest of it; lines break between words, never within one."""
    module, _dot, name = path.rpartition(".")
    shown = format_html('<span title="{}">{}</span>', path, _breakable(name, "_"))
    return format_html('{} <span class="pgqueue-module">{}</span>', shown, _breakable(module, ".")) if module else shown


def _breakable(text: str, after: str) -> Any:
    first, *others = text.split(after)
    return format_html("{}{}", first, format_html_join("", "{}<wbr>{}", ((after, each) for each in others)))
