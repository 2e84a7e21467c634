"""Queues and their pause."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..models import Queue
from ..operations import ACTIVE, PAUSED
from .verbs import VerbAdmin


class QueueAdmin(VerbAdmin):
    """Queues that a worker or an operator has named."""

    target_kind = "queue"
    list_display = ("name", "state", "paused_by", "pause_reason", "paused_until")
    sortable_by = ()
    ordering = ("name",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Bring the database's time along, by which a pause ends."""
        queues: QuerySet[Any] = super().get_queryset(request).annotate(now=Now())
        return queues

    @admin.display(description=_("state"))
    def state(self, queue: Queue) -> str:
        """Return whether workers take from the queue."""
        return self.state_of(queue)

    def state_of(self, obj: Any) -> str:
        """Return the state in the verbs' words; a pause whose time is over is none."""
        over = obj.paused_until is not None and obj.paused_until <= obj.now
        return ACTIVE if obj.paused_at is None or over else PAUSED

    def facts_of(self, obj: Queue) -> list[tuple[Any, Any]]:
        """Return what decides about a queue."""
        return [
            *super().facts_of(obj),
            (_("Paused by"), obj.paused_by),
            (_("Reason"), obj.pause_reason),
            (_("Until"), obj.paused_until),
        ]
