"""Read objects whose classes belong to the project or to its packages. Nothing here raises.

Every attribute of such an object may be computed: a client's error delegates to a response that is not there, a
property raises, a metaclass defines its own `__eq__`. What a task raises must be read all the same, because its job
needs an ending.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import PurePath
from types import TracebackType
from typing import Any

OF_PROJECT = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)
"""What code of the project may raise of itself. Anything else, as Ctrl-C or `pytest.fail`, is meant for the process."""

DEEPEST = 6
"""Places in the code that `told` names, from the inside out."""

_mro = type.__dict__["__mro__"].__get__
_name = type.__dict__["__name__"].__get__
_of_group = BaseExceptionGroup.__dict__["exceptions"].__get__
_traceback = BaseException.__dict__["__traceback__"].__get__


def read(subject: object, name: str) -> Any:
    """Return an attribute; None where there is none, or where reading it raises."""
    try:
        return getattr(subject, name, None)
    except BaseException:
        return None


def classes(subject: object) -> tuple[type, ...]:
    """Return the classes of an object, its own first, whatever its metaclass does."""
    found: tuple[type, ...] = _mro(type(subject))
    return found


def is_a(subject: object, kind: type | tuple[type, ...]) -> bool:
    """Return whether an object is an instance. `isinstance` also asks the object for its `__class__`."""
    return issubclass(type(subject), kind)


def text(value: str) -> str:
    """Return a str of no subclass."""
    return str.__str__(value)


def class_name(subject: object) -> str:
    """Return the name of an object's class."""
    found: str = _name(type(subject))
    return found


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception."""
    found: TracebackType | None = _traceback(error)
    return found


def members(exc: BaseException) -> Iterator[BaseException]:
    """Yield what is in a group and its groups, each once; any other exception is its own only member."""
    waiting = [exc]
    seen: set[int] = set()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if is_a(current, BaseExceptionGroup):
            waiting.extend(_of_group(current))
        else:
            yield current


def told(error: BaseException) -> str:
    """Return what a log line may hold of an exception: its class, its SQLSTATE and where it was raised; no message."""
    facts = f"error={class_name(error)}"
    sqlstate = read(error, "sqlstate")
    if type(sqlstate) is str and sqlstate.isalnum():
        facts += f" sqlstate={sqlstate}"
    places = list(_places(error))[-DEEPEST:]
    return f"{facts} at={'<'.join(reversed(places))}" if places else facts


def _places(error: BaseException) -> Iterator[str]:
    step = traceback_of(error)
    while step is not None:
        yield f"{PurePath(step.tb_frame.f_code.co_filename).name}:{step.tb_lineno}"
        step = step.tb_next


def complain(line: str) -> None:
    """Write a line to standard error, if there is one."""
    try:
        sys.stderr.write(f"{line}\n")
    except BaseException:
        return
