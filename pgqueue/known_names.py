"""Which names an operator may have misspelt: those that neither the code, the settings nor the database has."""

from __future__ import annotations

import difflib

from . import registry
from .protocol.naming import has_limited, known_queues
from .queue_names import declared, declared_queues


def why_unknown(alias: str, kind: str, name: str) -> str | None:
    """Return in a sentence that nothing has this name; None where something has it.

    `kind` is one of `LIMIT_KINDS`. Task modules that cannot be imported are left out.
    """
    registry.discover_what_can_be()
    known = declared_queues() if kind == "queue" else registry.names() if kind == "task" else declared(kind)
    if name in known or _is_in_database(alias, kind, name):
        return None
    near = difflib.get_close_matches(name, known, n=1)
    return f"No task and no job has the {kind} {name!r}." + (f" Did you mean {near[0]!r}?" if near else "")


def _is_in_database(alias: str, kind: str, name: str) -> bool:
    if kind == "queue":
        return bool(known_queues(alias, [name]))
    return has_limited(alias, kind, name)
