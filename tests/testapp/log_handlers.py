"""Log handlers as projects write them."""

from __future__ import annotations

import logging


class RefusingHandler(logging.Handler):
    """Lets its own trouble out, where logging's manual asks it to call `handleError`."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError("the log server is away")
