"""Which functions may be run as tasks: those that registered, by their registered names, and no others."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import module_has_submodule

from . import conf
from .compat import Task
from .exceptions import PGQueueError, UnknownTaskError

NOT_INSTALLED = "pgqueue is not in INSTALLED_APPS: add 'pgqueue' there, and run manage.py migrate."

_tasks: dict[str, Task[..., Any]] = {}
_probes: dict[str, Callable[..., Any]] = {}
_async: set[str] = set()


class TaskModuleError(PGQueueError, ImportError):
    """A task module that cannot be imported: `module` is its name, `problem` what its import raised."""

    def __init__(self, module: str, problem: str) -> None:
        super().__init__(module, problem)
        self.module = module
        self.problem = problem
        self.filename: str | None = None
        """The file that raised, which Django's reloader watches."""

    def __str__(self) -> str:
        return (
            f"{self.module} cannot be imported: {self.problem} Fix it, or name its app in"
            " PGQUEUE['EXCLUDED_TASK_APPS']."
        )


def register(task: Task[..., Any]) -> None:
    """Make a task known. Called wherever one is declared; variants made by `using()` change nothing."""
    known = _tasks.get(task.module_path)
    if known is None or known.func is not task.func:
        _refuse_uninstalled()
        _tasks[task.module_path] = task
        (_async.add if inspect.iscoroutinefunction(task.func) else _async.discard)(task.module_path)


def _refuse_uninstalled() -> None:
    """Raise `ImproperlyConfigured` where the app is not installed; while apps are loading, nobody knows."""
    if apps.ready and not apps.is_installed("pgqueue"):
        raise ImproperlyConfigured(NOT_INSTALLED)


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
    """Return the task of that name, importing the apps' task modules if it is not known yet.

    Raise `UnknownTaskError`, also where the task is in a module that cannot be imported.
    """
    if name not in _tasks:
        discover_what_can_be()
    return find(name)


def names() -> tuple[str, ...]:
    """Return the names of every task known to this process, sorted."""
    return tuple(sorted(_tasks))


def is_async(name: str) -> bool:
    """Say whether the task of that name is a coroutine function."""
    return name in _async


def discover() -> None:
    """Import the task modules of the installed apps (`TASK_MODULES`, by default `tasks`).

    All of them are tried. Raise `TaskModuleError` for the first that cannot be imported.
    """
    for error in discover_what_can_be():
        raise error


def discover_what_can_be() -> list[TaskModuleError]:
    """Import the task modules of the installed apps; return an error for each that cannot be imported."""
    return [error for module in _task_modules() if (error := _imported(module)) is not None]


def _task_modules() -> Iterator[str]:
    settings = conf.current()
    for app in apps.get_app_configs():
        if not {app.label, app.name}.isdisjoint(settings.excluded_task_apps):
            continue
        for name in settings.task_modules:
            if module_has_submodule(app.module, name):
                yield f"{app.name}.{name}"


def _imported(module: str) -> TaskModuleError | None:
    try:
        import_module(module)
    except Exception as cause:
        first_line, _, _ = str(cause).partition("\n")
        error = TaskModuleError(module, f"{type(cause).__name__}: {first_line.rstrip('.')}.")
        error.__cause__ = cause
        innermost = traceback.extract_tb(cause.__traceback__)[-1].filename
        error.filename = getattr(cause, "filename", None) or innermost
        return error
    return None
