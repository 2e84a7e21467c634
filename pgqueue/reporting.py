"""What receivers of `task_finished` find under way for a failed run: error trackers read and group by it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from functools import lru_cache
from types import TracebackType

from .exceptions import AttemptFailedError
from .failures import Description, redact, storable
from .foreign import is_a, members, read, traceback_of

HIDDEN = ("pgqueue.", "django.tasks.", "django_tasks.", "asgiref.")
"""Packages between the worker and the task: the variables of their frames hold arguments."""
LONGEST_TEXT = 20_000
"""Longest text of an exception, with those of what it came from, that goes into a log line."""


def reportable(error: BaseException, description: Description) -> BaseException:
    """Return an exception for receivers: the task's own, with the frames of its own code.

    One whose texts hold a secret or cannot be formatted is replaced: the class has the same name, the text is
    the stored one, the traceback is the same.
    """
    for one in _all_of(error):
        BaseException.with_traceback(one, _without_hidden(traceback_of(one)))
    return error if _is_harmless(error) else _named(description, traceback_of(error))


def stand_in(class_path: str, text: str) -> AttemptFailedError:
    """Return an exception for one of which only the stored text is left, in a class of the same name."""
    return _kind(class_path)(class_path, text)


def _named(description: Description, frames: TracebackType | None) -> BaseException:
    error = _kind(description.class_path)(description.class_path, description.traceback)
    error.message = description.message
    return error.with_traceback(frames)


class _StandIn(AttemptFailedError):
    message: str | None = None

    def __str__(self) -> str:
        return super().__str__() if self.message is None else self.message


@lru_cache(maxsize=1_000)
def _kind(class_path: str) -> type[_StandIn]:
    module, _, name = class_path.rpartition(".")
    return type(name, (_StandIn,), {"__module__": module, "__qualname__": name})


def _is_harmless(error: BaseException) -> bool:
    """Return whether the texts of an exception, and of what it came from, could be stored as they are."""
    try:
        text = "".join(traceback.format_exception(error, limit=0))
    except BaseException:
        return False
    return len(text) <= LONGEST_TEXT and redact(storable(text)) == text


def _all_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its members, and what each came from, each once."""
    waiting = [error]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        linked = (read(current, "__cause__"), read(current, "__context__"), *members(current))
        waiting.extend(one for one in linked if is_a(one, BaseException))


def _without_hidden(step: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while step is not None:
        if not str(step.tb_frame.f_globals.get("__name__")).startswith(HIDDEN):
            kept.append(step)
        step = step.tb_next
    rebuilt: TracebackType | None = None
    for one in reversed(kept):
        rebuilt = TracebackType(rebuilt, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return rebuilt
