"""Jobs: a list, a page with the latest attempts, and the verbs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib.admin.utils import flatten_fieldsets
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from ..models import Effect, Job, JobPayload, OperatorAction, Queue, Worker
from ..protocol import surveying
from ..protocol.connecting import job_alias
from ..protocol.following import compensation_of
from ..states import FINAL, WAITING, Stage, State
from ..verbs import COMPENSATE, Verb
from .confirming import Facts
from .exports import ExportedAdmin
from .filters import QueueFilter, StateFilter
from .inputs import asks_for_effect
from .job_columns import JobColumns
from .keyset import Order
from .late import late_facts, prefilled
from .marks import text_of
from .rights import Reader
from .search import job_id, understand
from .timeline import timeline
from .waits import why_it_waits
from .words import NOTHING, TIMES, effect_words, instant, instant_of, pause_of, stage_words

MOST_EFFECTS = 20
UNFINISHED = {str(state) for state in State if state not in FINAL}
WAITING_WORDS = {str(state) for state in WAITING}
LARGE_BACKLOG = 200_000
"""From so many waiting jobs on, to find them all and sort them then takes longer than to walk to the newest."""
REPLAY_UNTIL = instant_of("replay_until", _("replay until"))
SNOOZED_UNTIL = instant_of("snoozed_until", _("snoozed until"))
ERROR_CLASS = text_of("last_error_class", _("class"))
ERROR_MESSAGE = text_of("last_error", _("message"))
VERSION, FENCE = text_of("version", _("version")), text_of("fence", _("fence"))
RELATED = (
    text_of("parent_id", _("parent job")),
    text_of("cloned_from_id", _("cloned from")),
    text_of("schedule_id", _("schedule")),
)
SETTLED_BY = text_of("settled_by", _("settled by worker"))
LEASE_UNTIL = instant_of("lease_until", _("lease until"))


class JobAdmin(JobColumns, ExportedAdmin):
    """Jobs as they stand."""

    target_kind = export_kind = "job"
    export_columns = (
        *("id", "state", "queue", "task", "priority", "tenant", "shard_key", "operation_key", "version", "attempts"),
        *("max_attempts", "stage", "unknown_effects", "created_at", "run_at", "started_at", "finished_at"),
        *("worker_id", "last_error_class", "last_error"),
    )
    orders = {
        "newest": (_("created last"), Order(("-id",))),
        "oldest": (_("created first"), Order(("id",))),
        "longest": (_("longest running"), Order(("claimed_at", "id"))),
    }
    list_display = (
        "number",
        "standing_and_stage",
        "short_task",
        text_of("queue", _("queue")),
        "tried",
        "when",
        "error",
    )
    list_filter = (StateFilter, QueueFilter)
    url_lookups = ("state", "queue")
    ordering = ("-id",)
    search_fields = ("id",)
    search_help_text = _(
        "Understood: a job's number, id: key: task: queue: state: error: worker: tenant: op:REMOTE_REFERENCE ended:24h "
        "args.NAME:value. Free text is not searched: it would read the whole table."
    )
    empty_text = _(
        "No job here. Jobs come from enqueue() in your code, and are deleted when they are old. If you "
        "filtered or searched, clear that first."
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find jobs by qualifiers; what is not understood finds nothing rather than scanning the table."""
        may_see_args = request.user.has_perm("pgqueue.view_job_args")
        search = understand(search_term, alias=job_alias(), may_see_args=may_see_args)
        return (queryset.none() if search.problems else queryset.filter(search.condition)), False

    def order_of(self, request: HttpRequest) -> Order:
        """Return the order asked for; only running jobs have run for a while."""
        longest = self.orders["longest"][1]
        order = super().order_of(request)
        return order if order is not longest or request.GET.get("state") == State.RUNNING else Order(("-id",))

    def columns_for(self, request: HttpRequest) -> tuple[str, ...]:
        """Return arguments to whoever may see them."""
        reader = Reader.of(request)
        columns = self.export_columns if reader.errors else self.export_columns[:-1]
        return (*columns, *(("args", "kwargs") if reader.arguments else ()))

    def get_list_display(self, request: HttpRequest) -> Any:
        """Show of an error no more than its class to whoever may not see its message."""
        if Reader.of(request).errors:
            return self.list_display
        return tuple("error_class" if name == "error" else name for name in self.list_display)

    def exported_beside(self, rows: list[dict[str, Any]], columns: Sequence[str]) -> None:
        """Add the arguments."""
        if "args" not in columns:
            return
        payloads = JobPayload.objects.using(job_alias()).in_bulk([row["id"] for row in rows])
        for row in rows:
            payload = payloads.get(row["id"])
            row |= {"args": getattr(payload, "args", None), "kwargs": getattr(payload, "kwargs", None)}

    def is_understood(self, request: HttpRequest) -> bool:
        """Say whether the search was."""
        return not understand(request.GET.get("q", ""), alias=job_alias(), may_see_args=True).problems

    def sorts_few(self, request: HttpRequest) -> bool:
        """Unfinished jobs are few, and older than most of what has ended; a large backlog is walked instead."""
        states = {request.GET.get("state", ""), *re.findall(r"\bstate:(\w+)", request.GET.get("q", ""))}
        if not states & UNFINISHED:
            return False
        estimates = [queue.waiting_estimate or 0 for queue in self.queues_of(request)]
        return not states & WAITING_WORDS or max(estimates, default=0) < LARGE_BACKLOG

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Say what of a search was not understood, and offer to act on all that match."""
        may_see_args = request.user.has_perm("pgqueue.view_job_args")
        search = understand(request.GET.get("q", ""), alias=job_alias(), may_see_args=may_see_args)
        told: dict[str, Any] = {"problems": search.problems, "everything": self.everything(request)}
        return super().changelist_view(request, {**told, **(extra_context or {})})

    def queues_of(self, request: HttpRequest) -> list[Any]:
        """Return the queues that have a row or unfinished jobs, read once for a page."""
        if self.is_unread(request):
            return []
        known: list[Any] | None = getattr(request, "_pgqueue_queues", None)
        if known is None:
            known = surveying.queues(job_alias())
            setattr(request, "_pgqueue_queues", known)  # noqa: B010
        return known

    def page_context(self, request: HttpRequest) -> dict[str, Any]:
        """Say above the list which queues are paused: that is why due jobs wait."""
        told = super().page_context(request)
        if (
            request.resolver_match is not None
            and request.resolver_match.url_name == f"{self.opts.app_label}_job_changelist"
        ):
            told["banners"] = [
                {"url": self._queue_url(queue.name), "text": words}
                for queue in self.queues_of(request)
                if (words := pause_of(queue))
            ]
        return told

    def _queue_url(self, name: str) -> str:
        return self.page_url(Queue, "change", name) if self.shows(Queue, name) else ""

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show every column, and arguments and result to whoever may see them."""
        private = ["arguments", "result"] if request.user.has_perm("pgqueue.view_job_args") else ["hidden"]
        times = [instant_of(field, label) for field, label in TIMES.items()]
        keys = ("shard_key", "blocks_key", "held_from")
        placement = [
            ("priority", "lane", "max_run_seconds"),
            ("tenant", "resource"),
            "limits",
            keys,
            ("unique_key", "until_started", "replaced_at"),
        ]
        succeeded = obj is not None and obj.state == State.SUCCEEDED
        error = _("Error of an earlier attempt") if succeeded else _("Last error")
        return (
            (None, {"fields": [("standing", "tried", VERSION), ("queue_link", "operation")]}),
            (error, {"fields": [ERROR_CLASS, *([ERROR_MESSAGE] if Reader.of(request).errors else [])]}),
            (_("Times"), {"fields": [tuple(times[:3]), tuple(times[3:5]), tuple(times[5:])]}),
            (_("Lease"), {"fields": [("lease", "worker"), LEASE_UNTIL, (FENCE, "lease_losses", SETTLED_BY)]}),
            (
                _("Recovery"),
                {
                    "fields": [
                        ("recovery", "stage", "unknown_effects"),
                        (REPLAY_UNTIL, "probes", "taken_by", SNOOZED_UNTIL),
                        "on_dead",
                    ]
                },
            ),
            (_("Arguments and result"), {"fields": private}),
            (_("Placement"), {"fields": [*placement, RELATED], "classes": ["collapse"]}),
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
        """Add what happened to it."""
        past = timeline(obj, Reader.of(request))
        context["timeline"] = [self._shown(event) for event in past.events]
        context["older"] = past.is_cut
        context["late_answers"] = [answer.words() for answer in past.late_answers]
        context["standing"] = self.standing(obj)
        context["summary"] = self.summary(obj)
        return super().render_change_form(request, context, add=add, change=change, form_url=form_url, obj=obj)

    def _shown(self, event: Any) -> dict[str, Any]:
        worker = "" if event.worker_id is None else self.link(Worker, event.worker_id, str(event.worker_id))
        entry = "" if event.action_id is None else self.link(OperatorAction, event.action_id, _("audit entry"))
        return {"event": event, "worker": worker, "entry": entry}

    def summary(self, job: Any) -> list[Any]:
        """Return what must be known first: who holds it, what was asked of it, what is not known about it."""
        told: list[Any] = []
        if job.state in WAITING:
            told.append(why_it_waits(self, job))
        if job.lease_until is not None:
            told.append(str(self.lease(job)))
        if job.stop_requested_at is not None and job.state == State.RUNNING:
            asked = _("Asked to stop at %(at)s, not yet acknowledged.")
            told.append(str(asked % {"at": instant(job.stop_requested_at)}))
        if job.purged_at is not None:
            purged = _(
                "Purged at %(at)s: its arguments, its result and the texts of its errors are gone. The audit log says "
                "who did it, and why."
            )
            told.append(str(purged % {"at": instant(job.purged_at)}))
        if job.compensated_at is not None:
            undone = _("At %(at)s another job was enqueued to undo what this one did; the timeline names it.")
            told.append(str(undone % {"at": instant(job.compensated_at)}))
        if job.unknown_effects:
            unknown = _(
                "The outcome of an effect is unknown: a second run could do it twice. Ask the other side what became "
                "of the key in the timeline, then say here which it was."
            )
            told.append(str(unknown))
        return told

    def place_of(self, obj: Any) -> tuple[str, str | None]:
        """Return the job's queue and task."""
        return obj.queue, obj.task

    def target_of(self, object_id: str) -> str | None:
        """Return a job's number without what may stand around it."""
        number = job_id(object_id)
        return None if number is None else str(number)

    def shown_as(self, target: str, facts: Mapping[str, Any]) -> Any:
        """Return the job by its number and task."""
        return Job(pk=int(target), task=facts["task"])

    def known_of(self, obj: Any) -> dict[str, Any]:
        """Return what else than the state decides whether a verb is offered."""
        return {
            "unknown_effects": obj.unknown_effects,
            "stop_requested": obj.stop_requested_at is not None,
            "blocks_key": obj.blocks_key,
            "stage": obj.stage,
            "recovery": obj.recovery,
            "is_purged": obj.purged_at is not None,
            "is_compensated": obj.compensated_at is not None,
            "compensation": compensation_of(obj.task) if obj.state == State.UNKNOWN else None,
        }

    def effects_in_question(self, verb: Verb, obj: Any) -> list[str]:
        """Return the names of the effects whose outcome is unknown, for a verb that asks which one is meant."""
        if not asks_for_effect(verb.name):
            return []
        rows = Effect.objects.using(job_alias()).filter(job_id=obj.pk, stage=Stage.OUTCOME_UNKNOWN)
        return list(rows.order_by("id").values_list("name", flat=True))

    def prefilled(self, request: HttpRequest, verb: Verb, obj: Any) -> dict[str, str]:
        """Return what the latest answer of a lost worker says about the effect that a verdict is about."""
        effects = self.effects_in_question(verb, obj) or None
        if verb.statement != "reconcile" or obj.state != State.UNKNOWN:
            return {}
        return prefilled(verb.name, obj.pk, effects, with_result=Reader.of(request).arguments)

    def is_about(self, verb: Verb, obj: Any) -> bool:
        """Say whether a verb is listed: what no author has declared is not."""
        return verb.name != COMPENSATE or compensation_of(obj.task) is not None

    def facts_of(self, obj: Any) -> Facts:
        """Return what decides about a job."""
        effects = Effect.objects.using(job_alias()).filter(job_id=obj.pk).order_by("id")[:MOST_EFFECTS]
        return [
            *super().facts_of(obj),
            *((_("Effect %(name)s") % {"name": effect.name}, effect_words(effect)) for effect in effects),
            *late_facts(obj),
            (_("Taken by"), obj.taken_by or NOTHING),
            (_("Attempts"), self.tried(obj)),
            (_("Lease"), self.lease(obj)),
            (_("Stop requested"), instant(obj.stop_requested_at)),
            (_("Recovery policy"), obj.recovery),
            (_("Stage reached"), stage_words(obj.stage)),
            (_("Effects with unknown outcome"), obj.unknown_effects),
            (_("Operation key"), obj.operation),
            (_("Last error"), self.error_class(obj)),
        ]
