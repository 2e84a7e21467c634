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
    from django_tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskError
    from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started

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
