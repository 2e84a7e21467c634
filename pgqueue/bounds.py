"""What may be written: names and instants that every database, page and log can hold. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from .exceptions import LONGEST_NAME

EARLIEST = datetime(2, 1, 1, tzinfo=UTC)
LATEST = datetime(9999, 1, 1, tzinfo=UTC)
"""The first instant that is too late. A year is left at either end: Python has no other time zone for the last day."""
INSTANT = "a time within the years 2 to 9998 in UTC"

LONGEST_SECONDS = 100 * 366 * 86_400
"""A longer time added to now is beyond what can be read back, sooner or later."""

NAME = f"a text of 1 to {LONGEST_NAME} characters, without control characters and half surrogate pairs"
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Control characters and line ends, which forge lines of logs; NUL and half surrogate pairs, which cannot be stored."""


def is_name(value: Any) -> bool:
    """Return whether a value can name a queue, a tenant or a key. Long names fit no index and no notification."""
    return isinstance(value, str) and 0 < len(value) <= LONGEST_NAME and UNPRINTABLE.search(value) is None


def is_instant(at: datetime) -> bool:
    """Return whether an aware time can be stored and read back in any time zone."""
    return EARLIEST <= at < LATEST
