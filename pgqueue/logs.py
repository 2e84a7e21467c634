"""Log lines that decide nothing: whatever a handler, a filter or a formatter of the project does, the call returns."""

from __future__ import annotations

import logging
import threading
from typing import Any

from .exceptions import JobTimeoutError
from .foreign import class_name, complain, is_a


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
