"""Read JSON that somebody typed or sent: its size and its depth are bounded before it is parsed. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from .payloads import MAX_DEPTH

MAX_CHARACTERS = 2_000_000
DEEPEST = MAX_DEPTH + 1
"""The list of the arguments itself is a level."""
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.S)


class InputTooLargeError(ValueError):
    """JSON that is too long, or nested too deeply, to be parsed."""


def read_json(text: str) -> Any:
    """Return the value of a JSON text. Raise `InputTooLargeError`, or ValueError for what is not JSON.

    Python's parser goes one level of the stack deeper for each bracket: it is not given what it cannot parse.
    """
    if len(text) > MAX_CHARACTERS:
        raise InputTooLargeError(f"the JSON is longer than {MAX_CHARACTERS:,} characters")
    if _depth(text) > DEEPEST:
        raise InputTooLargeError(f"the JSON is nested deeper than {MAX_DEPTH} levels")
    return json.loads(text, parse_constant=_refuse)


def _depth(text: str) -> int:
    deepest = depth = 0
    for bracket in re.findall(r"[\[{\]}]", _STRING.sub("", text)):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _refuse(constant: str) -> Any:
    """NaN and the infinities are Python's, and no JSON."""
    raise ValueError(f"{constant} is not JSON")
