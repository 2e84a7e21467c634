"""Limits: how many jobs of a queue, tenant, task or resource may run, and how many may start per second."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..bounds import is_name
from ..models import Job, Limit
from ..protocol.connecting import job_alias
from ..protocol.viewing import database_now
from ..states import LIMIT_KINDS, State
from .confirming import Facts
from .keyset import Order
from .marks import text_of
from .pausing import PausedAdmin
from .words import NOTHING

KINDS = {"queue": _("queue"), "tenant": _("tenant"), "task": _("task"), "resource": _("resource")}


class KindFilter(admin.SimpleListFilter):
    """Limits of one kind: their names begin with it."""

    title = _("kind")
    parameter_name = "kind"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return every kind."""
        return list(KINDS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep those of the chosen kind."""
        return queryset if self.value() is None else queryset.filter(pk__startswith=f"{self.value()}:")


class LimitAdmin(PausedAdmin):
    """What has been bounded, by the settings or by an operator; everything else runs without a bound."""

    target_kind = "limit"
    list_display = ("id", "state", "running", "rate", "weight", "by", "why", "until")
    list_filter = (KindFilter,)
    url_lookups = ("kind",)
    ordering = ("id",)
    orders = {"name": (_("name"), Order(("id",)))}
    fields = readonly_fields = (
        *("id", "state", "running", "rate", "weight", "by", "why", "since", "until", text_of("version", _("version"))),
    )
    empty_text = _(
        "Nothing is bounded. PGQUEUE['LIMITS'] and operators do that: open the queue, tenant, task or resource from "
        "the page of a job."
    )

    def read_beside(self, rows: list[Any]) -> None:
        """Count what runs: a short list, whatever the table holds."""
        counted = _running()
        for row in rows:
            row.jobs = counted[row.pk]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the limit; what has no row is not bounded yet."""
        target = self.target_of(object_id)
        if target is None:
            return None
        limit: Any = super().get_object(request, target, from_field) or Limit(id=target)
        if not hasattr(limit, "now"):
            limit.now = database_now(job_alias())
        limit.jobs = _running()[target]
        return limit

    def target_of(self, object_id: str) -> str | None:
        """Return kind and name; None for what no limit is called."""
        kind, _colon, name = object_id.partition(":")
        return object_id if kind in LIMIT_KINDS and is_name(name) else None

    def place_of(self, obj: Any) -> tuple[str, str | None]:
        """Return the queue or task that it bounds; tenants and resources belong to none."""
        kind, _colon, name = obj.pk.partition(":")
        return name if kind == "queue" else "", name if kind == "task" else None

    def known_of(self, obj: Any) -> dict[str, Any]:
        """Return which kind it is: not every verb is for all."""
        return {"bounds": obj.pk.partition(":")[0]}

    def facts_of(self, obj: Any) -> Facts:
        """Return what decides about a limit."""
        return [
            *super().facts_of(obj),
            (_("Running, of at most"), self.running(obj)),
            (_("Starts per second"), self.rate(obj)),
            (_("Weight"), obj.weight),
        ]

    @admin.display(description=_("running / at most"))
    def running(self, limit: Any) -> str:
        """Return how many jobs run, and how many may."""
        return f"{limit.jobs:,} / {NOTHING if limit.max_running is None else format(limit.max_running, ',')}"

    @admin.display(description=_("starts per second"))
    def rate(self, limit: Limit) -> Any:
        """Return how many may start per second, and how many at once after a rest."""
        if limit.rate_per_second is None:
            return NOTHING
        facts = {"rate": f"{limit.rate_per_second:g}", "burst": limit.burst}
        return _("%(rate)s, at most %(burst)d at once") % facts


def _running() -> Counter[str]:
    """Return how many jobs run of each queue, task, tenant and resource, by the name of the limit."""
    found: Counter[str] = Counter()
    rows = Job.objects.using(job_alias()).filter(state=State.RUNNING)
    for row in rows.values(*KINDS).annotate(jobs=Count("pk")).order_by():
        for kind in KINDS:
            if row[kind] is not None:
                found[f"{kind}:{row[kind]}"] += row["jobs"]
    return found
