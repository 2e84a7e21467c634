"""Worker processes, alive and gone."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, Min
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ..models import Job, Worker
from ..protocol.connecting import job_alias
from ..states import State
from .base import ReadOnlyAdmin
from .keyset import Order
from .marks import text_of
from .words import NOTHING, instant_of, span


class WorkerAdmin(ReadOnlyAdmin):
    """One row per start of a process."""

    list_display = (
        "number",
        text_of("host", _("host")),
        "pid",
        "state",
        "heard",
        "takes",
        "running",
        "expiry",
        instant_of("started_at", _("started")),
        instant_of("stopped_at", _("stopped")),
        text_of("version", _("version")),
    )
    ordering = ("-id",)
    orders = {"newest": (_("newest"), Order(("-id",)))}
    fields = readonly_fields = (
        "host",
        "pid",
        "state",
        "heard",
        instant_of("heartbeat_at", _("last heartbeat")),
        instant_of("started_at", _("started")),
        instant_of("stopped_at", _("stopped")),
        "takes",
        "slots",
        "lease_seconds",
        "version",
        "tasks",
    )
    empty_text = _("No worker has reported for days. Start one: manage.py runworker.")

    def read_beside(self, rows: list[Any]) -> None:
        """Read the leases that the workers hold."""
        held = Job.objects.using(job_alias()).filter(state=State.RUNNING, worker_id__in=[row.pk for row in rows])
        counted = {row["worker_id"]: row for row in held.values("worker_id").annotate(Count("pk"), Min("lease_until"))}
        for row in rows:
            its: Any = counted.get(row.pk, {})
            row.leases, row.first_expiry = its.get("pk__count", 0), its.get("lease_until__min")

    @admin.display(description=_("running/slots"))
    def running(self, worker: Any) -> Any:
        """Return how many leases it holds, with a link to them."""
        if not worker.leases or not self.admin_site.is_registered(Job):
            return f"{worker.leases}/{worker.slots}"
        url = self.page_url(Job, "changelist", state=State.RUNNING.value, q=f"worker:{worker.pk}")
        return format_html('<a href="{}">{}/{}</a>', url, worker.leases, worker.slots)

    @admin.display(description=_("first lease ends"))
    def expiry(self, worker: Any) -> Any:
        """Return when the first of its leases ends, by the database's clock."""
        if worker.first_expiry is None:
            return NOTHING
        seconds = (worker.first_expiry - worker.now).total_seconds()
        return (_("in %(span)s") if seconds > 0 else _("%(span)s ago")) % {"span": span(seconds)}

    @admin.display(description=_("worker"))
    def number(self, worker: Worker) -> str:
        """Return the number that a job's lease names."""
        return str(worker.pk)

    @admin.display(description=_("state"))
    def state(self, worker: Any) -> Any:
        """Return whether it is heard; a silent one has missed a whole lease, so its jobs are taken over."""
        if worker.stopped_at is not None:
            return _("stopped")
        if self._silent_seconds(worker) > worker.lease_seconds:
            return _("SILENT")
        return _("draining") if worker.draining else _("alive")

    @admin.display(description=_("heard"))
    def heard(self, worker: Any) -> Any:
        """Return how long ago the last heartbeat was, by the database's clock."""
        return _("%(span)s ago") % {"span": span(self._silent_seconds(worker))}

    @admin.display(description=_("queues"))
    def takes(self, worker: Worker) -> Any:
        """Return which queues it takes from."""
        named = _("all") if worker.queues is None else ", ".join(worker.queues)
        if not worker.excluded_queues:
            return named
        return _("%(queues)s except %(excluded)s") % {"queues": named, "excluded": ", ".join(worker.excluded_queues)}

    def _silent_seconds(self, worker: Any) -> float:
        return float((worker.now - worker.heartbeat_at).total_seconds())
