"""Which names of queues are in use: those that a backend allows."""

from __future__ import annotations

from typing import Any

from .compat import BaseTaskBackend, InvalidTask, Task


def refuse_other_queue(task: Task[..., Any], backend: BaseTaskBackend) -> None:
    """Raise `InvalidTask` where a task's queue is not among the backend's, with what to do about it.

    Django checks the same and says no more than that. Where `QUEUES` is left out it allows the queue `default` alone.
    """
    if not backend.queues or task.queue_name in backend.queues:
        return
    raise InvalidTask(
        f"Queue {task.queue_name!r} is not valid for backend. TASKS[{backend.alias!r}]['QUEUES'] allows"
        f" {', '.join(sorted(backend.queues))}; Django's default is 'default' alone. Add the queue there, or set"
        " 'QUEUES': [] to allow every queue."
    )
