"""A frozen set: what would happen to it, the run in steps, and what came of each row."""

from __future__ import annotations

import csv
from contextlib import suppress
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connections, transaction
from django.db.models import Count, DurationField, ExpressionWrapper, F, Q, Value
from django.db.models.functions import Now
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import conf
from ..bulk import MOST_AT_ONCE, freeze, hint, may_touch_all, run_some, start, starter_of, stop
from ..models import BulkAction, BulkItem, Job, Queue, Worker
from ..operations import Actor, ask_to_start
from ..protocol import freezing
from ..protocol.connecting import job_alias
from ..protocol.operating import text
from ..states import Outcome
from ..verbs import VERBS
from .asking import AskedForAdmin, waiting_lines
from .base import READING
from .bulk import may_bulk
from .consequences import CONSEQUENCES
from .inputs import LARGEST_SPREAD_MINUTES
from .keyset import Order
from .marks import state_of
from .previewing import previewed
from .words import NOTHING, VERB_LABELS, instant_of, outcome_words, pause_of

STATES = {
    "frozen": gettext_lazy("frozen, nothing done yet"),
    "running": gettext_lazy("running"),
    "stopped": gettext_lazy("stopped"),
    "done": gettext_lazy("done"),
}
SHOWN_ROWS = 100
TYPED_FROM = 500
"""From so many rows on, their number is typed by hand."""
STEPS = ("run", "stop", "again")


class BulkActionAdmin(AskedForAdmin):
    """Frozen sets, newest first; each page is preview, progress and result in one."""

    target_kind = "bulk"

    orders = {"newest": (gettext_lazy("newest"), Order(("-created_at", "-id")))}
    ordering = ("-created_at", "-id")
    list_display = (
        "name",
        "actor_name",
        "standing",
        "size",
        instant_of("created_at", gettext_lazy("frozen")),
        "filter",
    )
    empty_text = gettext_lazy("Nobody has acted on many jobs at once. Tick rows in the list of jobs, or take all.")

    def name(self, bulk: BulkAction) -> str:
        """Return the verb and the beginning of the number."""
        return f"{VERB_LABELS.get(bulk.verb, bulk.verb)} {str(bulk.pk)[:8]}"

    name.short_description = gettext_lazy("bulk action")  # type: ignore[attr-defined]

    def standing(self, bulk: BulkAction) -> Any:
        """Return how far it is."""
        return STATES.get(bulk.state, bulk.state)

    standing.short_description = gettext_lazy("state")  # type: ignore[attr-defined]

    def get_urls(self) -> list[URLPattern]:
        """Add the steps of a run, and the result as CSV."""
        steps = self.admin_site.admin_view(self.step_view)
        for alias in connections:
            steps = transaction.non_atomic_requests(using=alias)(steps)
        table = self.admin_site.admin_view(self.csv_view)
        return [
            path("<path:object_id>/do/<slug:step>/", steps, name="pgqueue_bulkaction_step"),
            path("<path:object_id>/csv/", table, name="pgqueue_bulkaction_csv"),
            *super().get_urls(),
        ]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the set; None for what is no number of one."""
        try:
            UUID(object_id)
        except ValueError:
            return None
        return super().get_object(request, object_id, from_field)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the preview of what is left and the result of what is done; steps are posted elsewhere."""
        if request.method not in READING or not self.has_view_permission(request):
            raise PermissionDenied
        return self.looked(request, lambda: self._page(request, self._found(request, object_id)))

    def _found(self, request: HttpRequest, object_id: str) -> Any:
        bulk = self.get_object(request, unquote(object_id))
        if bulk is None:
            raise Http404
        return bulk

    def _page(self, request: HttpRequest, bulk: Any, problem: str = "") -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            **self.page_context(request),
            **self._shown(request, bulk),
            "opts": self.opts,
            "media": self.media,
            "title": capfirst(self.opts.verbose_name),
            "crumbs": self.crumbs(("", bulk)),
            "problem": problem,
        }
        request.current_app = self.admin_site.name
        status = HTTPStatus.UNPROCESSABLE_ENTITY if problem else HTTPStatus.OK
        return TemplateResponse(request, "admin/pgqueue/bulk.html", context, status=status)

    def _shown(self, request: HttpRequest, bulk: Any) -> dict[str, Any]:
        alias, verb = job_alias(), VERBS[bulk.verb]
        actor = Actor.of(request.user)
        items = BulkItem.objects.using(alias).filter(bulk_id=bulk.pk)
        # What would happen is for whoever decides: a set under way is only counted.
        preview = previewed(verb, freezing.preview(alias, bulk.pk) if bulk.state == "frozen" else [], actor)
        only = request.GET.get("outcome")
        shown = items.filter(outcome=only) if only in list(Outcome) else items
        rows = list(shown.order_by("job_id")[: SHOWN_ROWS + 1])
        known = Job.objects.using(alias).filter(pk__in=[row.job_id for row in rows]).annotate(now=Now())
        jobs = {job.pk: job for job in known}
        counted = _outcomes(items)
        done = sum(counted.values())
        return {
            "bulk": bulk,
            "waiting_requests": waiting_lines(self, bulk) if bulk.state == "frozen" else [],
            "needs_approval": bulk.state == "frozen" and bulk.verb in conf.current().two_person_verbs,
            "label": VERB_LABELS[bulk.verb],
            "consequence": CONSEQUENCES[bulk.verb],
            "standing": STATES.get(bulk.state, bulk.state),
            "preview": preview,
            "paused": self._paused(preview) if bulk.verb == "requeue" else [],
            "outcomes": [{"word": outcome_words(word), "value": word, "jobs": jobs} for word, jobs in counted.items()],
            "done": done,
            "in_background": bulk.state == "running" and Worker.objects.using(alias).filter(_alive()).exists(),
            "not_done": bulk.size - counted.get(Outcome.APPLIED, 0),
            "rows": [self._row(row, jobs.get(row.job_id)) for row in rows[:SHOWN_ROWS]],
            "more_rows": len(rows) > SHOWN_ROWS,
            "may_run": may_bulk(request, actor, verb) and not conf.current().console_read_only,
            "needs_typing": preview["can"] > TYPED_FROM,
            "can_spread": bulk.verb == "requeue",
            "spread_minutes": int(bulk.spread_seconds // 60),
            "longest_spread": LARGEST_SPREAD_MINUTES,
            "step_url": self.page_url(BulkAction, "step", bulk.pk, "run").removesuffix("run/"),
            "csv_url": self.page_url(BulkAction, "csv", bulk.pk),
            "reason": request.POST.get("reason", ""),
            "ticket": request.POST.get("ticket", ""),
            "spread": request.POST.get("spread", ""),
        }

    def _paused(self, preview: dict[str, Any]) -> list[str]:
        """Say which of the queues are paused: what is requeued waits there."""
        names = [name for name, _jobs in preview["queues"]]
        queues = Queue.objects.using(job_alias()).filter(name__in=names).annotate(now=Now())
        return [words for queue in queues if (words := pause_of(queue))]

    def _row(self, row: BulkItem, job: Job | None) -> dict[str, Any]:
        return {
            "job": self.link(Job, row.job_id, str(row.job_id)),
            "task": NOTHING if job is None else job.task,
            "state": NOTHING if job is None else state_of(job),
            "seen": row.version_seen,
            "found": NOTHING if row.version_found is None else row.version_found,
            "outcome": NOTHING if row.outcome is None else outcome_words(row.outcome),
        }

    def step_view(self, request: HttpRequest, object_id: str, step: str) -> HttpResponse:
        """Run the next rows, stop, or freeze anew what was not done. Does nothing by GET."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        bulk = self.get_object(request, unquote(object_id))
        if bulk is None or step not in STEPS:
            raise Http404
        actor = Actor.of(request.user)
        may = self.has_view_permission(request) and may_bulk(request, actor, VERBS[bulk.verb])
        is_anothers = bulk.state == "running" and bulk.started_by_id != actor.id and step != "again"
        if not may or (is_anothers and not may_touch_all(bulk.pk, bulk.verb, actor=actor)):
            raise PermissionDenied
        steps = {"run": self._run, "stop": self._stop, "again": self._again}
        return steps[step](request, bulk, actor)

    def _run(self, request: HttpRequest, bulk: Any, actor: Actor) -> HttpResponse:
        if bulk.state != "frozen":
            return self._go_on(request, bulk)
        problem = self._problem(request, bulk, actor)
        if problem:
            return self._page(request, bulk, problem)
        given: dict[str, Any] = {name: request.POST.get(name, "") for name in ("reason", "ticket")}
        spread_seconds = int(request.POST.get("spread", "") or "0") * 60
        if bulk.verb in conf.current().two_person_verbs:
            ask_to_start(bulk.pk, bulk.verb, actor=actor, **given, params={"spread_seconds": spread_seconds})
            messages.info(request, _("Asked for. Nothing is done before somebody else approves it."))
            return self._back(bulk)
        start(bulk.pk, actor=actor, **given, spread_seconds=spread_seconds)
        with suppress(DatabaseError), transaction.atomic():
            self.log_change(request, bulk, str(VERB_LABELS[bulk.verb]))
        if bulk.size <= MOST_AT_ONCE:
            return self._ran(request, bulk, run_some(bulk.pk, actor=actor))
        hint()
        if Worker.objects.using(job_alias()).filter(_alive()).exists():
            messages.info(request, _("Started: workers do it in the background, chunk by chunk."))
        else:
            messages.warning(request, _("Started, but no worker is alive to go on with it."))
        return self._back(bulk)

    def _go_on(self, request: HttpRequest, bulk: Any) -> HttpResponse:
        """Run the next rows in the name of whoever started the set."""
        starter = starter_of(bulk.verb, bulk.started_by_id)
        if starter is not None:
            return self._ran(request, bulk, run_some(bulk.pk, actor=starter))
        told = _("%(who)s started it and may not do that any more. Stop it, and freeze what is left anew.")
        messages.warning(request, told % {"who": bulk.started_by_name or NOTHING})
        return self._back(bulk)

    def _ran(self, request: HttpRequest, bulk: Any, done: int) -> HttpResponse:
        told = ngettext("%(number)d row has its outcome.", "%(number)d rows have their outcome.", done)
        messages.info(request, told % {"number": done})
        return self._back(bulk)

    def _problem(self, request: HttpRequest, bulk: Any, actor: Actor) -> str:
        """Return what is missing in the form that starts a run; nothing when it is complete."""
        if not text(request.POST.get("reason", "")):
            return _("Say why: the reason is kept in the audit log.")
        minutes = request.POST.get("spread", "") or "0"
        if not minutes.isdecimal() or int(minutes) > LARGEST_SPREAD_MINUTES:
            return _("Spread over whole minutes, %(longest)d at most.") % {"longest": LARGEST_SPREAD_MINUTES}
        can = previewed(VERBS[bulk.verb], freezing.preview(job_alias(), bulk.pk), actor)["can"]
        if can > TYPED_FROM and request.POST.get("typed", "").strip() != str(can):
            return _("Type the number %(id)s to confirm.") % {"id": can}
        return ""

    def _stop(self, request: HttpRequest, bulk: Any, actor: Actor) -> HttpResponse:
        stopped = stop(bulk.pk, actor=actor)
        told = _("Stopped: rows without an outcome stay as they are.") if stopped else _("It does not run.")
        messages.info(request, told)
        return self._back(bulk)

    def _again(self, request: HttpRequest, bulk: Any, actor: Actor) -> HttpResponse:
        alias = job_alias()
        left = BulkItem.objects.using(alias).filter(bulk_id=bulk.pk).exclude(outcome=Outcome.APPLIED.value)
        rows = Job.objects.using(alias).filter(pk__in=left.values("job_id"))
        asked = _("what %(name)s has not done") % {"name": str(bulk.pk)[:8]}
        id = freeze(bulk.verb, rows, actor=actor, filter=asked)
        if id is None:
            messages.info(request, _("All of it was done, or is gone: there is nothing to freeze."))
            return self._back(bulk)
        return HttpResponseRedirect(self.page_url(BulkAction, "change", id), status=HTTPStatus.SEE_OTHER)

    def _back(self, bulk: Any) -> HttpResponse:
        return HttpResponseRedirect(self.page_url(BulkAction, "change", bulk.pk), status=HTTPStatus.SEE_OTHER)

    def csv_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Return the result of each row; words here are codes, so that a program can read them."""
        if not self.has_view_permission(request):
            raise Http404
        return self.looked(request, lambda: self._csv(self._found(request, object_id)))

    def _csv(self, bulk: Any) -> HttpResponse:
        answer = HttpResponse(content_type="text/csv; charset=utf-8")
        answer["Content-Disposition"] = f'attachment; filename="bulk-{bulk.pk}.csv"'
        columns = ("job_id", "version_seen", "version_found", "state_found", "outcome", "audit_id")
        writer = csv.writer(answer)
        writer.writerow(columns)
        items = BulkItem.objects.using(job_alias()).filter(bulk_id=bulk.pk).order_by("job_id")
        writer.writerows(items.values_list(*columns))
        return answer


def _outcomes(items: Any) -> dict[str, int]:
    # At most a set of 10,000 is counted.
    counted = items.exclude(outcome=None).values_list("outcome").annotate(jobs=Count("pk")).order_by("-jobs", "outcome")
    return dict(counted)


def _alive() -> Q:
    """Return the condition of workers that are heard."""
    lease = ExpressionWrapper(F("lease_seconds") * Value(timedelta(seconds=1)), output_field=DurationField())
    return Q(stopped_at=None, draining=False, heartbeat_at__gt=Now() - lease)
