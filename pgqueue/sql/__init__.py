"""The queue's SQL: one static statement a file."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def load(name: str) -> str:
    """Return the statement of `<name>.sql` without its lines of comment, named behind its first word.

    `WITH/*pgqueue.claim*/`: tracers name a span after the first word, so that a comment in front would be the name of
    all of them; and a comment travels with each statement that is not prepared. Nothing else changes the text.
    """
    text = files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return _FIRST_WORD.sub(rf"\g<0>/*pgqueue.{name}*/", "\n".join(lines), count=1)


_FIRST_WORD = re.compile(r"\A\w+")


def load_all() -> None:
    """Read every statement now: later there may be no descriptor left for it, or another release in its place."""
    for file in files(__name__).iterdir():
        if file.name.endswith(".sql"):
            load(file.name.removesuffix(".sql"))
