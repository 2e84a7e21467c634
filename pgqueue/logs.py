"""Log lines that decide nothing: whatever a handler, a filter or a formatter of the project does, the call returns."""

from __future__ import annotations

import logging
import threading
from typing import Any

from django.conf import settings
from django.utils.log import RequireDebugFalse, RequireDebugTrue

from .exceptions import JobTimeoutError
from .foreign import class_name, complain, is_a

LEVELS = {0: logging.ERROR, 1: logging.INFO}
"""Level of our lines by the verbosity of the command; all of them from 2 up."""


def get_logger(name: str) -> Log:
    """Return the logger of a module of this package."""
    return Log(logging.getLogger(name))


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls never raise. A line that the project's handlers do not take goes to standard error."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line, named after the caller's place in the code."""
        try:
            if self.logger.isEnabledFor(level):
                self.logger.log(level, msg, *args, stacklevel=2, **kwargs)
        except BaseException as error:
            if _is_for_the_caller(error):
                raise
            complain(f"{_line(msg, args)} (a log handler raised {class_name(error)})")


def _is_for_the_caller(error: BaseException) -> bool:
    """Return whether an exception came from outside while a line was logged: a run's interruption, or Ctrl-C."""
    if is_a(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    return type(error) is JobTimeoutError


def _line(msg: object, args: tuple[object, ...]) -> str:
    try:
        return str(msg) % args if args else str(msg)
    except BaseException:
        return "a line that cannot be shown"


def is_written(logger: logging.Logger, level: int) -> bool:
    """Return whether any handler would write a line at that level.

    Where none does, as for Django's lines without DEBUG, making the line takes three times as long as a short job.
    """
    if not logger.isEnabledFor(level):
        return False
    current: logging.Logger | None = logger
    has_handler = False
    while current is not None:
        for handler in current.handlers:
            has_handler = True
            if level >= handler.level and not any(map(_drops_everything, handler.filters)):
                return True
        current = current.parent if current.propagate else None
    return not has_handler and logging.lastResort is not None and level >= logging.lastResort.level


def _drops_everything(filter: Any) -> bool:
    """Know Django's two filters that do not look at the line. Of any other it is not known what it lets pass."""
    kind = type(filter)
    return (kind is RequireDebugTrue and not settings.DEBUG) or (kind is RequireDebugFalse and bool(settings.DEBUG))


def show_on_stderr(verbosity: int, *, djangos: str) -> bool:
    """Write to standard error what the project's LOGGING does not take; return whether it leaves our level open.

    Verbosity 0 is errors alone, 1 our lines, 2 and 3 the lines of Django's logger for each job too. A level that is
    configured holds.
    """
    own, handler = logging.getLogger(__package__), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    is_open = own.level == logging.NOTSET
    if not own.hasHandlers():
        own.addHandler(handler)
        if is_open:
            own.setLevel(LEVELS.get(verbosity, logging.DEBUG))
    of_django = logging.getLogger(djangos)
    if verbosity > 1 and not is_written(of_django, logging.INFO):
        of_django.addHandler(handler)
        if not _has_level(of_django):
            of_django.setLevel(logging.INFO)
    return is_open


def _has_level(logger: logging.Logger) -> bool:
    """Return whether a logger or one above it has a level. The root's may be its default, and does not count."""
    current: logging.Logger | None = logger
    while current is not None and current is not logging.getLogger():
        if current.level != logging.NOTSET:
            return True
        current = current.parent
    return False
