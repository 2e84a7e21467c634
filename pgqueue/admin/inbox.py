"""The reconcile inbox: every job whose outcome is unknown, the oldest first; no other order hides one."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from ..models import Effect, Job
from ..protocol.connecting import job_alias
from ..states import Stage, State
from .base import ReadOnlyAdmin
from .keyset import Order
from .marks import text_of
from .words import NOTHING, instant, span


class ShownFilter(admin.SimpleListFilter):
    """Open ones, one's own, or those that are out of the way for a while."""

    title = _("who looks after it")
    parameter_name = "show"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the choices; without one, all that is unknown is shown."""
        return [("open", _("open")), ("mine", _("mine")), ("snoozed", _("snoozed"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep what was chosen."""
        match self.value():
            case "open":
                return queryset.filter(Q(snoozed_until=None) | Q(snoozed_until__lte=Now()))
            case "mine":
                return queryset.filter(taken_by=request.user.get_username())
            case "snoozed":
                return queryset.filter(snoozed_until__gt=Now())
        return queryset


class ReconcileAdmin(ReadOnlyAdmin):
    """A list; what is decided about a job is decided on its own page, by verbs."""

    orders = {"oldest": (_("oldest"), Order(("claimed_at", "id")))}
    ordering = ("claimed_at", "id")
    list_display = ("age", "job", text_of("queue", _("queue")), "effects", "asked", "assigned")
    list_filter = (ShownFilter,)
    url_lookups = ("show",)
    list_display_links = ("job",)
    empty_text = _(
        "Nothing needs a decision. Unknown outcomes appear here when a worker is lost after a call may have been sent."
    )

    def get_queryset(self, request: HttpRequest) -> Any:
        """Keep what is not known."""
        return super().get_queryset(request).filter(state=State.UNKNOWN)

    def read_beside(self, rows: list[Any]) -> None:
        """Read the effects of the page's jobs."""
        found = Effect.objects.using(job_alias()).filter(job_id__in=[row.pk for row in rows]).order_by("id")
        by_job: dict[int, list[Effect]] = {}
        for effect in found:
            by_job.setdefault(effect.job_id, []).append(effect)
        for row in rows:
            row.its_effects = by_job.get(row.pk, [])

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Lead to the job's own page, where it is decided."""
        if self.admin_site.is_registered(Job):
            return HttpResponseRedirect(self.page_url(Job, "change", object_id))
        return super().change_view(request, object_id, form_url, extra_context)

    @admin.display(description=_("age"))
    def age(self, job: Any) -> str:
        """Return how long ago the attempt began whose outcome is not known."""
        return NOTHING if job.claimed_at is None else span((job.now - job.claimed_at).total_seconds())

    @admin.display(description=_("job"))
    def job(self, job: Job) -> Any:
        """Return task and number."""
        return format_html('<span title="{}">{} #{}</span>', job.task, job.task.rpartition(".")[2], str(job.pk))

    @admin.display(description=_("effects"))
    def effects(self, job: Any) -> Any:
        """Return which calls are in question, and under which key the other side knows them."""
        unknown = [effect for effect in job.its_effects if effect.stage == Stage.OUTCOME_UNKNOWN]
        if not unknown:
            return _("none on record: its worker may still be running it")
        return format_html("{}", ", ".join(f"{effect.name} ({effect.operation_key})" for effect in unknown))

    @admin.display(description=_("assigned"))
    def assigned(self, job: Any) -> Any:
        """Return who has taken it, and until when it is out of the way."""
        who = job.taken_by or NOTHING
        if job.snoozed_until is None or job.snoozed_until <= job.now:
            return who
        return _("%(who)s, snoozed for %(span)s") % {
            "who": who,
            "span": span((job.snoozed_until - job.now).total_seconds()),
        }

    @admin.display(description=_("next probe"))
    def asked(self, job: Job) -> Any:
        """Return when the other side will be asked by itself."""
        return _("none: a person decides") if job.probe_at is None else instant(job.probe_at)
