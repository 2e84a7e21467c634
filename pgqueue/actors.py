"""Who acts on the queue, and what they may do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.utils.module_loading import import_string

from . import conf
from .verbs import VERBS, Verb


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts. `permissions` None may do everything: whoever has a shell of the application."""

    id: str | None
    name: str
    permissions: frozenset[str] | None = None
    authorizes: Callable[[str, str, str | None], bool] | None = None
    """Whether the actor may use a verb on a queue and a task (None: on the queue itself); None asks nobody."""

    @classmethod
    def of(cls, user: Any) -> Actor:
        """Return the actor that a Django user is; nobody may do anything where the console is read-only."""
        codenames = {verb.permission for verb in VERBS.values()}
        settings = conf.current()
        held = frozenset(name for name in codenames if user.has_perm(f"pgqueue.{name}"))
        asked = import_string(settings.console_authorize) if settings.console_authorize else None
        return cls(
            id=None if user.pk is None else str(user.pk),
            name=user.get_username(),
            permissions=frozenset() if settings.console_read_only else held,
            authorizes=None if asked is None else partial(asked, user),
        )

    def may(self, verb: Verb) -> bool:
        """Say whether the actor has the verb's permission."""
        return self.permissions is None or verb.permission in self.permissions

    def may_touch(self, verb: Verb, queue: str, task: str | None) -> bool:
        """Say whether the actor may use the verb on what belongs to this queue and task."""
        return self.authorizes is None or bool(self.authorizes(verb.name, queue, task))


def places(verb: Verb, facts: Mapping[str, Any], given: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return the queues and tasks that a request touches: a target's own, and the queue that a job is moved to."""
    if verb.kind == "limit":
        kind, _, name = str(facts["id"]).partition(":")
        return [(name if kind == "queue" else "", name if kind == "task" else None)]
    if verb.kind == "queue":
        return [(str(facts["name"]), None)]
    if verb.kind == "worker":
        return [(queue, None) for queue in facts["queues"] or [""]]
    if verb.kind == "request":
        return [(facts["queue"] or "", facts["task"])]
    queues = [facts["queue"], *([given["queue"]] if verb.name == "move_queue" else [])]
    return [(queue, facts["task"]) for queue in queues]
