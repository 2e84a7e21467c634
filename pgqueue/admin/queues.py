"""Queues and their pause."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ..models import Job, Queue
from ..protocol import surveying
from ..protocol.connecting import job_alias
from ..verbs import ACTIVE, PAUSED
from .keyset import Order
from .verbs import Facts, VerbAdmin
from .words import NOTHING, instant, queue_words, span

LONGEST_NAME = 200


class QueueAdmin(VerbAdmin):
    """Queues that a worker or an operator has named."""

    target_kind = "queue"
    words = staticmethod(queue_words)
    list_display = (
        "name",
        "state",
        "ready",
        "oldest",
        "running",
        "retrying",
        "unknown",
        "rate",
        "by",
        "why",
        "until",
    )
    ordering = ("name",)
    orders = {"name": (_("name"), Order(("name",)))}
    fields = readonly_fields = ("name", "state", "by", "why", "since", "until", "version")
    empty_text = _(
        "No queue has been paused, or named by a worker (runworker --queue NAME). Every other queue is active: "
        "open one from the page of a job in it."
    )

    def read_beside(self, rows: list[Any]) -> None:
        """Count what is in the queues and what has left them."""
        counted, rates = surveying.by_queue(job_alias()), surveying.rates(job_alias())
        for row in rows:
            row.counted = counted.get(row.name, {})
            row.rate_of_five_minutes = rates.get(row.name, 0)

    @admin.display(description=_("ready"))
    def ready(self, queue: Any) -> Any:
        """Return how many jobs are due, with a link to them."""
        return self._counted(queue, "pending", q="state:pending due:now")

    @admin.display(description=_("oldest"))
    def oldest(self, queue: Any) -> str:
        """Return for how long the oldest due job has waited."""
        jobs, seconds = queue.counted.get("pending", (0, 0.0))
        return span(seconds) if jobs else NOTHING

    @admin.display(description=_("running"))
    def running(self, queue: Any) -> Any:
        """Return how many jobs run."""
        return self._counted(queue, "running", state="running")

    @admin.display(description=_("waiting to retry"))
    def retrying(self, queue: Any) -> Any:
        """Return how many jobs wait for their next attempt."""
        return self._counted(queue, "retrying", state="retrying")

    @admin.display(description=_("unknown"))
    def unknown(self, queue: Any) -> Any:
        """Return how many jobs have an unknown outcome."""
        return self._counted(queue, "unknown", state="unknown")

    @admin.display(description=_("ended per second, last 5 min"))
    def rate(self, queue: Any) -> str:
        """Return how many jobs a second ended lately."""
        return f"{queue.rate_of_five_minutes / 300:.1f}"

    def _counted(self, queue: Any, counted: str, /, **query: str) -> Any:
        jobs = queue.counted.get(counted, (0, 0.0))[0]
        text = f"≥ {surveying.COUNTED_AT_MOST:,}" if jobs > surveying.COUNTED_AT_MOST else f"{jobs:,}"
        if not jobs or not self.admin_site.is_registered(Job):
            return text
        return format_html('<a href="{}">{}</a>', self.page_url(Job, "changelist", queue=queue.name, **query), text)

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

    def place_of(self, obj: Any) -> tuple[str, str | None]:
        """Return the queue's own name."""
        return obj.name, None

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
    def state(self, queue: Queue) -> Any:
        """Return whether workers take from the queue."""
        return queue_words(self.state_of(queue))

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
