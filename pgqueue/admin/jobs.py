"""Jobs: a list, a page with the latest attempts, and the verbs."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from ..models import Attempt, Job, JobPayload, JobResult, Queue, Worker
from ..protocol.connecting import job_alias
from ..states import WAITING, State
from .verbs import Facts, VerbAdmin
from .words import NOTHING, instant, instant_of, span

LATEST_ATTEMPTS = 20
LONGEST_ERROR = 80
LARGEST_ID = 2**63 - 1
TIMES = {
    "created_at": _("created"),
    "run_at": _("due"),
    "claimed_at": _("claimed"),
    "started_at": _("started"),
    "finished_at": _("finished"),
    "stop_requested_at": _("stop requested"),
    "probe_at": _("next probe"),
}

LEASE_UNTIL = instant_of("lease_until", _("lease until"))


def job_id(text: str) -> int | None:
    """Return the number in a text; None when no job can have it."""
    digits = re.fullmatch(r"\s*#?([0-9]{1,19})\s*", text)
    number = int(digits[1]) if digits else None
    return number if number is not None and number <= LARGEST_ID else None


def _seconds(job: Any, at: datetime) -> float:
    """Return how far an instant lies ahead of when the row was read; negative is past."""
    return float((at - job.now).total_seconds())


class StateFilter(admin.SimpleListFilter):
    """Jobs in one state; the words are known, so that nothing is counted to offer them."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return every state."""
        return [(state.value, state.value) for state in State]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep jobs of the chosen state."""
        if self.value() is None:
            return queryset
        return queryset.filter(state=self.value()) if self.value() in list(State) else queryset.none()


class JobAdmin(VerbAdmin):
    """Jobs as they stand."""

    target_kind = "job"
    list_display = (
        "number",
        "state",
        "task",
        "queue",
        "tried",
        "when",
        "error",
    )
    list_filter = (StateFilter,)
    url_lookups = ("state",)
    ordering = ("-id",)
    search_fields = ("id",)
    search_help_text = _("A job's number. Free text is not searched.")
    empty_text = _(
        "No job here. Jobs come from enqueue() in your code, and are deleted when they are old. If you "
        "filtered or searched, clear that first."
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find a job by its number; anything else finds nothing rather than scanning the table."""
        if not search_term.strip():
            return queryset, False
        number = job_id(search_term)
        return (queryset.none() if number is None else queryset.filter(pk=number)), False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show every column, and arguments and result to whoever may see them."""
        private = ["arguments", "result"] if request.user.has_perm("pgqueue.view_job_args") else ["hidden"]
        times = [instant_of(field, label) for field, label in TIMES.items()]
        placement = [("priority", "lane", "max_run_seconds"), ("tenant", "shard_key", "held_from")]
        related = [("parent_id", "cloned_from_id", "schedule_id")]
        return (
            (None, {"fields": [("state", "tried", "version"), ("queue_link", "operation")]}),
            (_("Last error"), {"fields": ["last_error_class", "last_error"]}),
            (_("Times"), {"fields": [tuple(times[:3]), tuple(times[3:5]), tuple(times[5:])]}),
            (_("Lease"), {"fields": [("lease", "worker"), LEASE_UNTIL, ("fence", "lease_losses", "settled_by")]}),
            (_("Recovery"), {"fields": [("recovery", "stage", "unknown_effects")]}),
            (_("Arguments and result"), {"fields": private}),
            (_("Placement"), {"fields": [*placement, *related], "classes": ["collapse"]}),
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        """Everything is: what is no column has to be said to be so."""
        return list(flatten_fieldsets(self.get_fieldsets(request, obj)))

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Any = None,
    ) -> HttpResponse:
        """Add the latest attempts."""
        attempts = Attempt.objects.using(job_alias()).filter(job_id=obj.pk).order_by("-id").defer("traceback")
        context["attempts"] = [self._attempt(attempt) for attempt in attempts[:LATEST_ATTEMPTS]]
        return super().render_change_form(request, context, add=add, change=change, form_url=form_url, obj=obj)

    def _attempt(self, attempt: Attempt) -> dict[str, Any]:
        return {
            "number": attempt.number,
            "outcome": attempt.outcome,
            "worker": self.worker(attempt),
            "fence": attempt.fence,
            "started": instant(attempt.started_at),
            "ended": instant(attempt.ended_at),
            "stage": attempt.stage,
            "error": NOTHING if attempt.error_class is None else f"{attempt.error_class}: {attempt.message or ''}",
        }

    def target_of(self, object_id: str) -> str | None:
        """Return a job's number without what may stand around it."""
        number = job_id(object_id)
        return None if number is None else str(number)

    def known_of(self, obj: Any) -> dict[str, Any]:
        """Return what else than the state decides whether a verb is offered."""
        return {"unknown_effects": obj.unknown_effects, "stop_requested": obj.stop_requested_at is not None}

    def facts_of(self, obj: Any) -> Facts:
        """Return what decides about a job."""
        return [
            *super().facts_of(obj),
            (_("Attempts"), self.tried(obj)),
            (_("Lease"), self.lease(obj)),
            (_("Stop requested"), instant(obj.stop_requested_at)),
            (_("Recovery policy"), obj.recovery),
            (_("Stage"), obj.stage),
            (_("Effects with unknown outcome"), obj.unknown_effects),
            (_("Operation key"), obj.operation),
            (_("Last error"), self.error(obj)),
        ]

    @admin.display(description=_("job"))
    def number(self, job: Job) -> str:
        """Return the number as it is searched and typed: exact, and never grouped."""
        return str(job.pk)

    @admin.display(description=_("attempts"))
    def tried(self, job: Job) -> str:
        """Return how many of the attempts are used."""
        return _("%(used)d of %(all)d") % {"used": job.attempts, "all": job.max_attempts}

    @admin.display(description=_("lease"))
    def lease(self, job: Any) -> Any:
        """Return who holds the job, and for how long by the database's clock."""
        if job.lease_until is None:
            return NOTHING
        seconds = _seconds(job, job.lease_until)
        words = {"worker": str(job.worker_id), "span": span(seconds)}
        return (
            _("worker %(worker)s, %(span)s left") if seconds > 0 else _("worker %(worker)s, ran out %(span)s ago")
        ) % words

    @admin.display(description=_("when"))
    def when(self, job: Any) -> Any:
        """Return what comes next, or came last, and how far that is by the database's clock."""
        if job.lease_until is not None:
            return self.lease(job)
        if job.finished_at is not None:
            return _("ended %(span)s ago") % {"span": span(_seconds(job, job.finished_at))}
        if job.state not in WAITING:
            return NOTHING
        seconds = _seconds(job, job.run_at)
        return (_("due in %(span)s") if seconds > 0 else _("due for %(span)s")) % {"span": span(seconds)}

    @admin.display(description=_("last error"))
    def error(self, job: Job) -> str:
        """Return the class without its module, and the beginning of the message."""
        if job.last_error_class is None:
            return NOTHING
        name = job.last_error_class.rpartition(".")[2]
        return Truncator(f"{name}: {job.last_error or ''}".rstrip(": ")).chars(LONGEST_ERROR)

    @admin.display(description=_("queue"))
    def queue_link(self, job: Job) -> Any:
        """Return the queue with a link to it: a paused one is why a due job waits."""
        return self.link(Queue, job.queue, job.queue)

    @admin.display(description=_("worker"))
    def worker(self, job: Job | Attempt) -> Any:
        """Return the worker with a link to it."""
        return NOTHING if job.worker_id is None else self.link(Worker, job.worker_id, str(job.worker_id))

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
        return NOTHING if result is None else json.dumps(result.value, ensure_ascii=False)

    @admin.display(description=_("arguments and result"))
    def hidden(self, job: Job) -> Any:
        """Say what is missing."""
        return _("Hidden: you do not have the permission pgqueue.view_job_args.")
