"""Which functions may be run as tasks: those that registered, by their registered names, and no others."""

from __future__ import annotations

from typing import Any

from django.utils.module_loading import autodiscover_modules

from . import conf
from .compat import Task
from .exceptions import UnknownTaskError

_tasks: dict[str, Task[..., Any]] = {}


def register(task: Task[..., Any]) -> None:
    """Make a task known. Called wherever one is declared; variants made by `using()` change nothing."""
    known = _tasks.get(task.module_path)
    if known is None or known.func is not task.func:
        _tasks[task.module_path] = task


def find(name: str) -> Task[..., Any]:
    """Return the task of that name. Raise `UnknownTaskError`."""
    try:
        return _tasks[name]
    except KeyError:
        raise UnknownTaskError(name) from None


def find_or_discover(name: str) -> Task[..., Any]:
    """Return the task of that name, importing the apps' task modules if it is not known yet."""
    if name not in _tasks:
        discover()
    return find(name)


def names() -> tuple[str, ...]:
    """Return the names of every task known to this process, sorted."""
    return tuple(sorted(_tasks))


def discover() -> None:
    """Import the task modules of all installed apps (`TASK_MODULES`, by default `tasks`)."""
    autodiscover_modules(*conf.current().task_modules)
