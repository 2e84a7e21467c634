"""The queue's SQL: one static statement a file, loaded as it stands."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def load(name: str) -> str:
    """Return the text of `<name>.sql`. Nothing formats, joins or rewrites it."""
    return files(__name__).joinpath(f"{name}.sql").read_text(encoding="utf-8")


def load_all() -> None:
    """Read every statement now: later there may be no descriptor left for it, or another release in its place."""
    for file in files(__name__).iterdir():
        if file.name.endswith(".sql"):
            load(file.name.removesuffix(".sql"))
