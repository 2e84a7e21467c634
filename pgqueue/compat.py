"""`django.tasks` where Django has it (6.0 and newer), its backport `django_tasks` before that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar

import django

if TYPE_CHECKING or django.VERSION >= (6, 0):
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    try:
        from django_tasks import exceptions
    except ModuleNotFoundError as error:
        if error.name != "django_tasks":
            raise
        raise ModuleNotFoundError(
            "On Django 5.2, pgqueue needs the package django-tasks. Install it with: pip install 'pgqueue[django52]'.",
            name=error.name,
        ) from None
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started

    # Until 0.12 the names ended in Error; after it they are Django's.
    InvalidTask = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
    InvalidTaskBackend = getattr(exceptions, "InvalidTaskBackend", None) or exceptions.InvalidTaskBackendError

P = ParamSpec("P")
T = TypeVar("T")

if TYPE_CHECKING:
    GenericTask = Task
else:

    class GenericTask(Task, Generic[P, T]):
        """Django's Task, which is generic for type checkers only."""

        __slots__ = ()


__all__ = [
    "BaseTaskBackend",
    "GenericTask",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
