"""The overview: is anything on fire, is work flowing, who changed something."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from .. import conf
from ..models import ApprovalRequest, BulkAction, Job, OperatorAction, Queue, Reconcile, Worker
from ..protocol.connecting import job_alias
from ..protocol.counting import Standing
from ..protocol.surveying import COUNTED_AT_MOST, Failures, Live
from ..states import State
from .base import ReadOnlyAdmin
from .charts import HEIGHT, MARGIN, STACKED, WIDTH, columns, dots, percentile, points
from .failing import WINDOWS, cells, failed_today, failing, failing_words, name_of, still_dead_today
from .keyset import Order
from .marks import beside
from .needs import asked_words, blocker_words, capped, no_worker_words, rows_words, silent_words, unknown_words
from .rights import HIDDEN, Reader
from .survey import RANGES, Survey, bulk_of, collapsed, survey
from .waits import GROUPS
from .words import NOTHING, SCHEDULED, STATES, instant, outcome_words, pause_words, span, stamp, verb_words

RANGE_LABELS = {
    "1h": gettext_lazy("1 hour"),
    "6h": gettext_lazy("6 hours"),
    "24h": gettext_lazy("24 hours"),
    "7d": gettext_lazy("7 days"),
}
HALF, MOST = 0.5, 0.95


class OverviewAdmin(ReadOnlyAdmin):
    """No rows: one page."""

    orders = {"none": ("", Order(("id",)))}
    empty_text = ""

    def get_urls(self) -> list[URLPattern]:
        """Add the figures as JSON."""
        view = self.admin_site.admin_view(self.json_view)
        return [path("overview.json", view, name="pgqueue_overview_json"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the page."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return self.looked(request, lambda: self._page(request, extra_context or {}))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """There is no other page."""
        return self.changelist_view(request, extra_context)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """There is no object that could have a history."""
        return self.changelist_view(request, extra_context)

    def json_view(self, request: HttpRequest) -> HttpResponse:
        """Return the live numbers for a program."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return self.looked(request, lambda: _answered(_figures(self._survey("1h"))))

    def _survey(self, range: str) -> Survey:
        return survey(job_alias(), range, within_seconds=conf.current().console_timeout_seconds)

    def _page(self, request: HttpRequest, extra: dict[str, Any]) -> HttpResponse:
        asked = request.GET.get("range", "")
        chosen = asked if asked in RANGES else "1h"
        read = self._survey(chosen)
        context = {
            **self.admin_site.each_context(request),
            **self.page_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": _("Job queue"),
            "crumbs": self.crumbs(),
            "needs": list(self._needs(read)),
            "numbers": list(self._numbers(read)),
            "standing": [_due(each) for each in read.standing],
            "ranges": [
                {"word": word, "label": label, "current": word == chosen} for word, label in RANGE_LABELS.items()
            ],
            "flow": _flow(read, *RANGES[chosen]),
            "times": [_times(read, *RANGES[chosen], column) for column in (2, 3)],
            "failures": [self._failure(row) for row in read.failures],
            "windows": WINDOWS,
            "actions": [self._action(*told, reader=Reader.of(request)) for told in collapsed(read.actions)],
            "read_at": stamp(read.at),
            "too_slow": read.too_slow,
            "width": WIDTH,
            "height": HEIGHT,
            "line_kinds": ("half", "most"),
            "lines_view": f"0 {-MARGIN} {WIDTH} {HEIGHT + 2 * MARGIN}",
            **extra,
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/pgqueue/overview.html", context)

    def _list(self, model: Any, **query: Any) -> str:
        """Return the list that explains a number; nothing where this site does not show it."""
        return self.page_url(model, "changelist", **query) if self.admin_site.is_registered(model) else ""

    def _needs(self, read: Survey) -> Iterator[dict[str, Any]]:
        if read.live is not None:
            yield from self._needs_now(read.live)
        yield from map(self._failing, failing(read.failures))
        for blocker in read.blockers:
            url = self.page_url(Job, "change", blocker.job_id) if self._list(Job) else ""
            yield {"sign": "!", "text": blocker_words(blocker), "url": url}
        for worker in read.silent:
            yield {"sign": "!", "text": silent_words(worker), "url": self._list(Worker)}

    def _needs_now(self, live: Live) -> Iterator[dict[str, Any]]:
        if live.ready and not live.slots:
            yield {"sign": "!", "text": no_worker_words(live), "url": self._list(Worker)}
        if live.unknown:
            url = self._list(Reconcile) or self._list(Job, state=State.UNKNOWN.value)
            yield {"sign": "?", "text": unknown_words(live), "url": url}
        if live.asked_for:
            yield {"sign": "⚖", "text": asked_words(live), "url": self._list(ApprovalRequest, state="waiting")}
        for queue in live.paused:
            url = self.page_url(Queue, "change", queue["name"]) if self.shows(Queue, queue["name"]) else ""
            yield {"sign": "‖", "text": pause_words(queue), "url": url}
        if live.alone is not None and live.ready:
            text = _(
                "Job %(task)s #%(id)s has lost a lease before, so it runs alone: worker %(worker)s takes nothing else "
                "until it ends, and jobs wait. Another worker would take them."
            )
            url = self.page_url(Job, "change", live.alone["id"]) if self._list(Job) else ""
            yield {"sign": "▶", "text": text % live.alone, "url": url}

    def _failing(self, row: Failures) -> dict[str, Any]:
        return {"sign": "✕", "text": failing_words(row), "url": self._failed_url(row.error, "1h")}

    def _failed_url(self, error: str, window: str) -> str:
        return self._list(Job, q=f'state:dead error:"{error}" ended:{window}') if error else ""

    def _numbers(self, read: Survey) -> Iterator[dict[str, Any]]:
        live = read.live
        if live is None:
            return
        more = live.waiting_is_capped
        old = NOTHING if live.oldest_ready_seconds is None else span(live.oldest_ready_seconds)
        yield self._number(State.PENDING, capped(live.ready, more=more), q="state:pending due:now")
        yield self._number(SCHEDULED, capped(live.scheduled, more=more), q="state:pending due:later")
        yield self._number(State.RETRYING, capped(live.retrying, more=more), state="retrying")
        yield self._number(State.RUNNING, _running(live), state="running")
        yield self._number(State.UNKNOWN, capped(live.unknown), state="unknown")
        yield self._number(State.PAUSED, capped(live.held), state="paused")
        yield self._number(_("Failed within 24 hours"), failed_today(read.failures), q="state:dead ended:24h")
        yield self._number(_("Oldest ready job waits for"), old, q="state:pending due:now", sort="oldest")
        yield self._number(_("Rows of jobs"), rows_words(live))

    def _number(self, of: Any, value: str, **query: str) -> dict[str, Any]:
        """Return a number of a state, or of what has words of its own."""
        label = STATES[of][1] if of in STATES else of
        code = beside(label, State.PENDING.value if of == SCHEDULED else of) if of in STATES else ""
        return {"label": label, "code": code, "value": value, "url": self._list(Job, **query)}

    def _failure(self, row: Failures) -> dict[str, Any]:
        urls = [self._failed_url(row.error, window) for window in WINDOWS]
        return {"error": name_of(row), "full": row.error, "cells": cells(row, urls)}

    def _action(self, action: OperatorAction, rows: int, *, reader: Reader) -> dict[str, Any]:
        target, entry = (
            f"{action.target_kind} {action.target_id}",
            self.link(OperatorAction, action.pk, _("audit entry")),
        )
        if rows > 1:
            target = ngettext("%(number)d job", "%(number)d jobs", rows) % {"number": rows}
            entry = self.link(BulkAction, bulk_of(action), _("bulk action"))
        return {
            "at": stamp(action.created_at),
            "who": action.actor_name,
            "what": verb_words(action.verb),
            "target": target,
            "outcome": outcome_words(action.outcome),
            "reason": action.reason if reader.reasons else HIDDEN,
            "ticket": action.ticket if reader.reasons else "",
            "entry": entry,
        }


def _due(group: Standing) -> dict[str, Any]:
    # As many rows are looked at as are counted: beyond, there may be more of each group.
    jobs = capped(group.jobs, more=group.jobs >= COUNTED_AT_MOST)
    return {"name": group.name, "jobs": jobs, "words": GROUPS[group.name]}


def _running(live: Live) -> str:
    """Return how many jobs run in how many slots. Jobs of lost workers hold no slot of a live one."""
    slots = f"{live.slots:,}"
    if not live.expired:
        return _("%(running)s of %(slots)s slots") % {"running": capped(live.running), "slots": slots}
    facts = {"running": capped(max(0, live.running - live.expired)), "slots": slots, "expired": f"{live.expired:,}"}
    return _("%(running)s of %(slots)s slots, and %(expired)s whose lease ran out") % facts


def _step_names(step: int, steps: int, read: Survey) -> list[str]:
    """Return when each step began, oldest first."""
    return [instant(read.at - timedelta(seconds=step * (steps - number))) for number in range(steps)]


def _flow(read: Survey, step: int, steps: int) -> dict[str, Any]:
    counted: list[dict[str, int]] = [{} for _number in range(steps)]
    for back, outcome, jobs in read.minutes:
        if 0 <= back < steps:
            counted[steps - 1 - back][outcome] = jobs
    drawn, top = columns(counted)
    names = _step_names(step, steps, read)
    words = [str(STATES[kind][1]) for kind in STACKED]
    told = [
        ", ".join(f"{word} {number:,}" for word, number in zip(words, column.counts, strict=True) if number)
        for column in drawn
    ]
    return {
        "columns": [
            {"at": name, "column": column, "title": f"{name}: {text or '0'}"}
            for name, column, text in zip(names, drawn, told, strict=True)
        ],
        "kinds": list(zip(STACKED, words, strict=True)),
        "top": f"{top:,}",
        "total": sum(sum(column.counts) for column in drawn),
        "slot_width": WIDTH / steps,
    }


def _times(read: Survey, step: int, steps: int, column: int) -> dict[str, Any]:
    found: list[dict[int, int]] = [{} for _number in range(steps)]
    whole: dict[int, int] = {}
    for row in read.histograms:
        back, bucket, jobs = row[0], row[1], row[column] or 0
        if 0 <= back < steps and jobs:
            found[steps - 1 - back][bucket] = jobs
            whole[bucket] = whole.get(bucket, 0) + jobs
    halves, mosts = ([percentile(each, share) for each in found] for share in (HALF, MOST))
    top = max((value for value in mosts if value is not None), default=0.0)
    rows = zip(_step_names(step, steps, read), map(_seconds, halves), map(_seconds, mosts), strict=True)
    return {
        "title": _("Wait time") if column == 2 else _("Run time"),
        "key": "wait" if column == 2 else "run",
        "half": points(halves, top),
        "most": points(mosts, top),
        "half_dots": dots(halves, top),
        "most_dots": dots(mosts, top),
        "top": _seconds(top or None),
        "half_now": _seconds(percentile(whole, HALF)),
        "most_now": _seconds(percentile(whole, MOST)),
        "rows": list(rows),
    }


def _seconds(value: float | None) -> str:
    """Write a percentile: an upper bound, as histograms have it."""
    if value is None:
        return NOTHING
    return f"≤ {value:.3f} s" if value < 1 else f"≤ {span(value)}" if value > 120 else f"≤ {value:.0f} s"


def _answered(figures: dict[str, Any]) -> HttpResponse:
    status = HTTPStatus.SERVICE_UNAVAILABLE if figures["too_slow"] else HTTPStatus.OK
    return JsonResponse(figures, status=status)


def _figures(read: Survey) -> dict[str, Any]:
    live = read.live
    names = ("ready", "scheduled", "retrying", "running", "expired", "unknown", "needs_a_person", "held", "slots")
    return {
        "at": timezone.localtime(read.at).isoformat() if timezone.is_aware(read.at) else read.at.isoformat(),
        "too_slow": sorted(read.too_slow),
        **{name: getattr(live, name, None) for name in (*names, "waiting_is_capped", "oldest_ready_seconds")},
        "counted_at_most": COUNTED_AT_MOST,
        "paused_queues": None if live is None else [queue["name"] for queue in live.paused],
        "waiting_for_approval": None if live is None else [asked["id"] for asked in live.asked_for],
        "silent_workers": None if "silent" in read.too_slow else [worker.id for worker in read.silent],
        "failed_within_24h": None if "failures" in read.too_slow else sum(row.jobs[2] for row in read.failures),
        "still_dead_of_24h": None if "failures" in read.too_slow else still_dead_today(read.failures),
    }
