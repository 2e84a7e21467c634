"""Worker processes, alive and gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import Count, Min
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ..models import Job, Worker
from ..protocol.connecting import job_alias
from ..states import State
from ..verbs import ALIVE, DRAINING, SILENT, STOPPED
from .confirming import Facts
from .keyset import Order
from .marks import text_of
from .search import job_id
from .verbs import VerbAdmin
from .words import NOTHING, instant_of, span, worker_words


class WorkerAdmin(VerbAdmin):
    """One row per start of a process."""

    target_kind = "worker"
    words = in_full = staticmethod(worker_words)
    list_display = (
        "number",
        text_of("host", _("host")),
        text_of("pid", _("process")),
        "state",
        "heard",
        "takes",
        "running",
        "expiry",
        instant_of("started_at", _("started")),
        instant_of("stopped_at", _("stopped")),
        text_of("release", _("release")),
    )
    ordering = ("-id",)
    orders = {"newest": (_("newest"), Order(("-id",)))}
    fields = readonly_fields = (
        "host",
        text_of("pid", _("process")),
        "state",
        "heard",
        instant_of("heartbeat_at", _("last heartbeat")),
        instant_of("started_at", _("started")),
        instant_of("stopped_at", _("stopped")),
        "takes",
        "slots",
        "lease_seconds",
        "release",
        "tasks",
        "running",
        text_of("version", _("version")),
    )
    empty_text = _("No worker has reported for days. Start one: manage.py runworker.")

    def read_beside(self, rows: list[Any]) -> None:
        """Read the leases that the workers hold."""
        held = Job.objects.using(job_alias()).filter(state=State.RUNNING, worker_id__in=[row.pk for row in rows])
        counted = {row["worker_id"]: row for row in held.values("worker_id").annotate(Count("pk"), Min("lease_until"))}
        for row in rows:
            its: Any = counted.get(row.pk, {})
            row.leases, row.first_expiry = its.get("pk__count", 0), its.get("lease_until__min")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the worker with its leases."""
        worker = super().get_object(request, object_id, from_field)
        if worker is not None:
            self.read_beside([worker])
        return worker

    def target_of(self, object_id: str) -> str | None:
        """Return a worker's number without what may stand around it."""
        number = job_id(object_id)
        return None if number is None else str(number)

    def place_of(self, obj: Any) -> tuple[str, str | None]:
        """Return one of the queues that it serves."""
        return self.places_of(obj)[0]

    def places_of(self, obj: Any) -> list[tuple[str, str | None]]:
        """Return the queues that it serves; none where it serves all."""
        return [(queue, None) for queue in obj.queues or [""]]

    def known_of(self, obj: Any) -> dict[str, Any]:
        """Return how many leases it holds: one that holds any is not forgotten."""
        return {"leases": obj.leases}

    def state_of(self, obj: Any) -> str:
        """Return the state in the verbs' words; a silent one has missed a whole lease, so its jobs are taken over."""
        if obj.stopped_at is not None:
            return STOPPED
        if self._silent_seconds(obj) > obj.lease_seconds:
            return SILENT
        return DRAINING if obj.draining or obj.drain_requested_at is not None else ALIVE

    def facts_of(self, obj: Any) -> Facts:
        """Return what decides about a worker."""
        return [
            *super().facts_of(obj),
            (_("Heard"), self.heard(obj)),
            (_("Queues"), self.takes(obj)),
            (_("Leases"), obj.leases),
            (_("First lease ends"), self.expiry(obj)),
        ]

    def shown_as(self, target: str, facts: Mapping[str, Any]) -> Any:
        """Return the worker by its number, host and process."""
        return Worker(pk=int(target), host=facts["host"], pid=facts["pid"])

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
        """Return whether it is heard."""
        return worker_words(self.state_of(worker))

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
