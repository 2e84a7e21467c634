"""Worker processes, alive and gone."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import F
from django.utils.translation import gettext_lazy as _

from ..models import Worker
from .base import ReadOnlyAdmin
from .words import instant_of, span


class WorkerAdmin(ReadOnlyAdmin):
    """One row per start of a process."""

    list_display = (
        "number",
        "host",
        "pid",
        "state",
        "heard",
        "takes",
        "slots",
        instant_of("started_at", _("started")),
        instant_of("stopped_at", _("stopped")),
        "version",
    )
    ordering = (F("stopped_at").desc(nulls_first=True), "-id")
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
