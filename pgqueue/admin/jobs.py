"""Jobs: a list, a page with every attempt, and the verbs."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..models import Attempt, Job, JobPayload, JobResult
from ..protocol.connecting import job_alias
from ..states import State
from .verbs import VerbAdmin

LATEST_ATTEMPTS = 20
LARGEST_ID = 2**63 - 1


class StateFilter(admin.SimpleListFilter):
    """Jobs in one state; the words are known, so that nothing is counted to offer them."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return every state."""
        return [(state.value, state.value) for state in State]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep jobs of the chosen state."""
        return queryset.filter(state=self.value()) if self.value() else queryset


class JobAdmin(VerbAdmin):
    """Jobs as they stand."""

    target_kind = "job"
    list_display = ("id", "task", "queue", "state", "tried", "run_at", "finished_at", "last_error_class")
    list_filter = (StateFilter,)
    sortable_by = ()
    ordering = ("-id",)
    search_fields = ("id",)
    search_help_text = _("A job's number. Free text is not searched.")
    readonly_fields = ("arguments", "result", "operation")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find a job by its number; anything else finds nothing rather than scanning the table."""
        term = search_term.strip().removeprefix("#")
        if not term:
            return queryset, False
        if term.isascii() and term.isdigit() and int(term) <= LARGEST_ID:
            return queryset.filter(pk=int(term)), False
        return queryset.none(), False

    @admin.display(description=_("attempts"))
    def tried(self, job: Job) -> str:
        """Return how many of the attempts are used."""
        return f"{job.attempts}/{job.max_attempts}"

    def get_fields(self, request: HttpRequest, obj: Job | None = None) -> list[Any]:
        """Show every column, and the arguments to whoever may see them."""
        fields = [field.name for field in Job._meta.fields]
        shown = ["operation", "result"] if obj is not None else []
        if obj is not None and request.user.has_perm("pgqueue.view_job_args"):
            shown.insert(0, "arguments")
        return [*fields, *shown]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> Any:
        """Add the latest attempts."""
        attempts: Any = []
        if object_id.isascii() and object_id.isdigit() and int(object_id) <= LARGEST_ID:
            attempts = Attempt.objects.using(job_alias()).filter(job_id=int(object_id)).order_by("-id")
        context = {**(extra_context or {}), "attempts": attempts[:LATEST_ATTEMPTS]}
        return super().change_view(request, object_id, form_url, context)

    @admin.display(description=_("operation key"))
    def operation(self, job: Job) -> str:
        """Return the key of the job's business operation."""
        return job.operation

    @admin.display(description=_("arguments"))
    def arguments(self, job: Job) -> str:
        """Return the arguments as text."""
        payload = JobPayload.objects.using(job_alias()).filter(pk=job.pk).first()
        given = {} if payload is None else {"args": payload.args or [], "kwargs": payload.kwargs or {}}
        return json.dumps(given, ensure_ascii=False)

    @admin.display(description=_("result"))
    def result(self, job: Job) -> str:
        """Return what the job returned, as text."""
        result = JobResult.objects.using(job_alias()).filter(pk=job.pk).first()
        return "" if result is None else json.dumps(result.value, ensure_ascii=False)

    def facts_of(self, obj: Job) -> list[tuple[Any, Any]]:
        """Return what decides about a job."""
        lease = ""
        if obj.lease_until is not None:
            lease = _("worker %(id)s until %(until)s") % {"id": obj.worker_id, "until": obj.lease_until}
        return [
            *super().facts_of(obj),
            (_("Attempts"), self.tried(obj)),
            (_("Lease"), lease),
            (_("Recovery policy"), obj.recovery),
            (_("Stage"), obj.stage),
            (_("Effects with unknown outcome"), obj.unknown_effects),
            (_("Operation key"), obj.operation),
            (_("Last error"), obj.last_error_class),
        ]
