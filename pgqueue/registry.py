"""Which functions may be run as tasks: those that registered, by their registered names, and no others."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from django.utils.module_loading import autodiscover_modules

from . import conf
from .compat import Task
from .exceptions import UnknownTaskError

_tasks: dict[str, Task[..., Any]] = {}
_probes: dict[str, Callable[..., Any]] = {}
_async: set[str] = set()


def register(task: Task[..., Any]) -> None:
    """Make a task known. Called wherever one is declared; variants made by `using()` change nothing."""
    known = _tasks.get(task.module_path)
    if known is None or known.func is not task.func:
        _tasks[task.module_path] = task
        (_async.add if inspect.iscoroutinefunction(task.func) else _async.discard)(task.module_path)


def register_probe(name: str, probe: Callable[..., Any]) -> None:
    """Make known how to ask what became of the effects of a task."""
    _probes[name] = probe


def probe_of(name: str) -> Callable[..., Any]:
    """Return the probe of the task of that name. Raise `UnknownTaskError`."""
    if name not in _probes:
        raise UnknownTaskError(name)
    return _probes[name]


def probed() -> tuple[str, ...]:
    """Return the names of the tasks that have a probe, sorted."""
    return tuple(sorted(_probes))


def get(name: str) -> Task[..., Any] | None:
    """Return the task of that name, None if this process does not know it."""
    return _tasks.get(name)


def find(name: str) -> Task[..., Any]:
    """Return the task of that name. Raise `UnknownTaskError`."""
    task = get(name)
    if task is None:
        raise UnknownTaskError(name)
    return task


def find_or_discover(name: str) -> Task[..., Any]:
    """Return the task of that name, importing the apps' task modules if it is not known yet."""
    if name not in _tasks:
        discover()
    return find(name)


def names() -> tuple[str, ...]:
    """Return the names of every task known to this process, sorted."""
    return tuple(sorted(_tasks))


def is_async(name: str) -> bool:
    """Say whether the task of that name is a coroutine function."""
    return name in _async


def discover() -> None:
    """Import the task modules of all installed apps (`TASK_MODULES`, by default `tasks`)."""
    autodiscover_modules(*conf.current().task_modules)
