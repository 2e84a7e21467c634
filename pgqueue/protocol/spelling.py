"""Spell endings as the parameters of their statements: an array for each column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

_FAILURE = ("failure_classes", "error_classes", "messages", "tracebacks")
_COLUMNS: dict[str, tuple[str, ...]] = {
    "complete": ("ids", "fences", "run_seconds", "results"),
    "retry": ("ids", "fences", "run_seconds", "delay_seconds", *_FAILURE),
    "bury": ("ids", "fences", "run_seconds", *_FAILURE),
    "release": ("ids", "fences"),
}
_NUMBERS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], str]]] = {
    "ids": (attrgetter("id"), str),
    "fences": (attrgetter("fence"), str),
    "run_seconds": (attrgetter("run_seconds"), "{:.6f}".format),
    "delay_seconds": (attrgetter("delay_seconds"), str),
}


def _failure(read: Callable[[Any], str]) -> Callable[[Any], str | None]:
    return lambda ending: None if ending.failure is None else read(ending.failure)


_VALUES: dict[str, Callable[[Any], Any]] = {
    "results": lambda ending: ending.result,
    "failure_classes": _failure(lambda failure: str(failure.failure_class)),
    "error_classes": _failure(lambda failure: failure.description.class_path),
    "messages": _failure(lambda failure: failure.description.message),
    "tracebacks": _failure(lambda failure: failure.description.traceback),
}


def params_of(kind: str, endings: Sequence[Any]) -> dict[str, Any]:
    """Return the parameters of the statement that writes endings of one kind."""
    return {name: _column(name, endings) for name in _COLUMNS[kind]}


def _column(name: str, endings: Sequence[Any]) -> str | list[Any] | None:
    """Return one fact of all endings as an array. Numbers are spelled here: the driver takes ten times as long."""
    if name in _NUMBERS:
        field, spell = _NUMBERS[name]
        return "{" + ",".join(map(spell, map(field, endings))) + "}"
    values = list(map(_VALUES[name], endings))
    return None if name == "results" and values.count(None) == len(values) else values
