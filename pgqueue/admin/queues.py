"""Queues and their pause."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ..bounds import is_name
from ..models import Job, Limit, Queue
from ..protocol import surveying
from ..protocol.connecting import job_alias
from ..protocol.viewing import database_now
from .keyset import Order
from .marks import text_of
from .needs import capped
from .pausing import PausedAdmin
from .words import NOTHING, span

COUNTED_TOGETHER = ("pending", "scheduled", "retrying")
"""States whose rows share one cap."""
UNLISTED = "unlisted"


class QueueAdmin(PausedAdmin):
    """Queues that a worker or an operator has named, and those that have jobs."""

    target_kind = "queue"
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
    fields = readonly_fields = (
        "name",
        "state",
        "by",
        "why",
        "since",
        "until",
        "limits",
        text_of("version", _("version")),
    )
    empty_text = _(
        "No job waits or runs, and no queue has been paused, or named by a worker (runworker --queue NAME). Every "
        "other queue is active."
    )

    def read_beside(self, rows: list[Any]) -> list[Any]:
        """Count what is in the queues and what has left them; return those that have no row: they are active."""
        counted = surveying.by_queue(job_alias())
        waiting = sum(
            jobs for its in counted.values() for state, (jobs, _age) in its.items() if state in COUNTED_TOGETHER
        )
        unlisted = [Queue(name=name) for name, its in counted.items() if UNLISTED in its]
        for row in (*rows, *unlisted):
            row.counted = counted.get(row.name, {})
            # Rows that were not looked at may be of any queue.
            row.has_more = waiting > surveying.COUNTED_AT_MOST
        return unlisted

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
        return f"{queue.counted.get('ended', (0, 0.0))[0] / 300:.1f}"

    def _counted(self, queue: Any, counted: str, /, **query: str) -> Any:
        jobs = queue.counted.get(counted, (0, 0.0))[0]
        text = capped(jobs, more=queue.has_more and counted in ("pending", "retrying"))
        if not jobs or not self.admin_site.is_registered(Job):
            return text
        return format_html('<a href="{}">{}</a>', self.page_url(Job, "changelist", queue=queue.name, **query), text)

    def target_of(self, object_id: str) -> str | None:
        """Return the name, unless no row can have it."""
        return object_id if is_name(object_id) else None

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the queue; one without a row is active, and is paused before its first job if need be."""
        if self.target_of(object_id) is None:
            return None
        queue: Any = super().get_object(request, object_id, from_field)
        if queue is None:
            queue = Queue(name=object_id)
            queue.now = database_now(job_alias())
        return queue

    def place_of(self, obj: Any) -> tuple[str, str | None]:
        """Return the queue's own name."""
        return obj.name, None

    @admin.display(description=_("limits"))
    def limits(self, queue: Queue) -> Any:
        """Return a link to how many of its jobs may run."""
        return self.link(Limit, f"queue:{queue.name}", f"queue:{queue.name}")
