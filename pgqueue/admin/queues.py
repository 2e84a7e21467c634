"""Queues and their pause."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..models import Queue
from ..verbs import ACTIVE, PAUSED
from .verbs import Facts, VerbAdmin
from .words import NOTHING, instant

LONGEST_NAME = 200


class QueueAdmin(VerbAdmin):
    """Queues that a worker or an operator has named."""

    target_kind = "queue"
    list_display = ("name", "state", "by", "why", "until")
    ordering = ("name",)
    fields = readonly_fields = ("name", "state", "by", "why", "since", "until", "version")
    empty_text = _(
        "No queue has been paused, or named by a worker (runworker --queue NAME). Every other queue is active: "
        "open one from the page of a job in it."
    )

    def target_of(self, object_id: str) -> str | None:
        """Return the name, unless no row can have it."""
        return object_id if 0 < len(object_id) <= LONGEST_NAME and "\0" not in object_id else None

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the queue; one without a row is active, and is paused before its first job if need be."""
        if self.target_of(object_id) is None:
            return None
        queue: Any = super().get_object(request, object_id, from_field)
        if queue is None:
            queue = Queue(name=object_id)
            queue.now = None
        return queue

    def state_of(self, obj: Any) -> str:
        """Return the state in the verbs' words; a pause whose time is over is none."""
        over = obj.paused_until is not None and obj.paused_until <= obj.now
        return ACTIVE if obj.paused_at is None or over else PAUSED

    def facts_of(self, obj: Any) -> Facts:
        """Return what decides about a queue."""
        return [
            *super().facts_of(obj),
            (_("Paused by"), self.by(obj)),
            (_("Reason"), self.why(obj)),
            (_("Paused since"), self.since(obj)),
            (_("Resumes by itself"), self.until(obj)),
        ]

    @admin.display(description=_("state"))
    def state(self, queue: Queue) -> str:
        """Return whether workers take from the queue."""
        return self.state_of(queue)

    @admin.display(description=_("paused by"))
    def by(self, queue: Queue) -> str:
        """Return who paused it."""
        return queue.paused_by or NOTHING if self._is_paused(queue) else NOTHING

    @admin.display(description=_("reason"))
    def why(self, queue: Queue) -> str:
        """Return why it was paused."""
        return queue.pause_reason or NOTHING if self._is_paused(queue) else NOTHING

    @admin.display(description=_("paused since"))
    def since(self, queue: Queue) -> str:
        """Return when it was paused."""
        return instant(queue.paused_at) if self._is_paused(queue) else NOTHING

    @admin.display(description=_("resumes by itself"))
    def until(self, queue: Queue) -> Any:
        """Return when the pause ends by itself."""
        if not self._is_paused(queue):
            return NOTHING
        return _("never") if queue.paused_until is None else instant(queue.paused_until)

    def _is_paused(self, queue: Queue) -> bool:
        return self.state_of(queue) == PAUSED
