"""Decide whether statements may be sent past a Django database wrapper. Every place that does so asks here first."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import load_backend

_DJANGOS = ("django.db.backends.", "django.contrib.gis.db.backends.")
_CURSOR_METHODS = ("cursor", "_cursor", "create_cursor", "chunked_cursor", "make_cursor", "make_debug_cursor")
_NAMES = frozenset(_CURSOR_METHODS)


def may_be_bypassed(wrapper: BaseDatabaseWrapper) -> bool:
    """Return whether nothing but Django itself acts on the cursors that this wrapper makes.

    A backend may choose a tenant in each cursor: then a statement past the cursor acts for another tenant. So the
    wrapper's class must be Django's own or declared to be plain, nothing of it may be patched, and no
    `execute_wrapper` may be in force.
    """
    own = type(wrapper)
    return (
        has_plain_sessions(own)
        and (not own.__module__.startswith(_DJANGOS) or all(map(is_djangos, _cursor_methods(own))))
        and _NAMES.isdisjoint(vars(wrapper))
        and not wrapper.execute_wrappers
    )


def has_plain_sessions(wrapper_class: type) -> bool:
    """Return whether wrappers of this class have no state beside Django's, and change neither cursors nor sessions.

    A backend of another package declares that with `pgqueue_plain_sessions = True` in the class body of its
    `DatabaseWrapper`. A subclass does not inherit the declaration: it may change what its base does not.
    """
    if wrapper_class.__module__.startswith(_DJANGOS):
        return True
    return vars(wrapper_class).get("pgqueue_plain_sessions") is True


def some_keep_state() -> bool:
    """Return whether any database of the project has a wrapper that may keep state of a task."""
    return not all(_has_plain_engine(database["ENGINE"]) for database in connections.settings.values())


def is_djangos(function: Any) -> bool:
    """Return whether a function's code is Django's: `functools.wraps` copies the name of the module, not the code."""
    return str(getattr(function, "__globals__", {}).get("__name__", "")).startswith("django.")


def _cursor_methods(wrapper_class: type) -> list[Any]:
    return [getattr(wrapper_class, name) for name in _CURSOR_METHODS]


@cache
def _has_plain_engine(engine: str) -> bool:
    return has_plain_sessions(load_backend(engine).DatabaseWrapper)
