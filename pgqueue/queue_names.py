"""Which names of queues a backend allows, and which names the code and the settings use."""

from __future__ import annotations

from typing import Any

from django.conf import settings as django_settings

from . import conf, registry
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


def declared_queues() -> set[str]:
    """Return the queues that known tasks, `PGQUEUE` and `TASKS` name."""
    backends = getattr(django_settings, "TASKS", {}).values()
    allowed = {name for backend in backends for name in backend.get("QUEUES", ())}
    limited = {name.partition(":")[2] for name in conf.current().limits if name.startswith("queue:")}
    return declared("queue_name") | set(conf.current().queues) | allowed | limited


def declared(option: str) -> set[str]:
    """Return the values that known tasks have for an option that is a name."""
    found = (getattr(registry.find(name), option, None) for name in registry.names())
    return {name for name in found if name}
