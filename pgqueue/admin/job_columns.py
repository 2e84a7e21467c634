"""What a job's columns say, in its list and on its page."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from ..models import Job, JobPayload, JobResult, Limit, Queue, Worker
from ..protocol.connecting import job_alias
from ..protocol.tolerating import FarInstant
from ..states import WAITING, Stage, State
from .bulk import BulkVerbs
from .marks import short_path, state_of
from .waits import note_waits, reason_of
from .words import NOTHING, instant, span

LONGEST_ERROR = 80


class JobColumns(BulkVerbs):
    """An admin of jobs with their columns; the list and the page are `JobAdmin`'s."""

    def read_beside(self, rows: list[Any]) -> None:
        """Read why the due jobs of a page wait."""
        note_waits(rows)

    @admin.display(description=_("job"))
    def number(self, job: Job) -> str:
        """Return the number as it is searched and typed: exact, and never grouped."""
        return str(job.pk)

    @admin.display(description=_("state"))
    def standing(self, job: Any) -> Any:
        """Return the state as sign and words; a pending job is ready, or scheduled for later."""
        return state_of(job)

    @admin.display(description=_("state"))
    def standing_and_stage(self, job: Any) -> Any:
        """Return the state, and the stage by its one word where an effect was begun."""
        if job.stage == Stage.NOT_CALLED:
            return self.standing(job)
        stage = format_html('<span class="pgqueue-module">{}: <code>{}</code></span>', _("stage"), job.stage)
        return format_html("{} {}", self.standing(job), stage)

    @admin.display(description=_("task"))
    def short_task(self, job: Job) -> Any:
        """Return the function over its module: the list has no room for both in one line."""
        return short_path(job.task)

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
        if isinstance(job.run_at, FarInstant):
            return _("due at %(at)s") % {"at": instant(job.run_at)}
        seconds = _seconds(job, job.run_at)
        told = (_("due in %(span)s") if seconds > 0 else _("due for %(span)s")) % {"span": span(seconds)}
        reason = reason_of(self, getattr(job, "wait", None))
        return format_html('{} <span class="pgqueue-module">{}</span>', told, reason) if reason else told

    @admin.display(description=_("last error"))
    def error(self, job: Job) -> Any:
        """Return the class without its module, and the beginning of the message; of a success, whose it was."""
        if job.last_error_class is None:
            return NOTHING
        name = job.last_error_class.rpartition(".")[2]
        text = Truncator(f"{name}: {job.last_error or ''}".rstrip(": ")).chars(LONGEST_ERROR)
        return _("Earlier attempt: %(error)s") % {"error": text} if job.state == State.SUCCEEDED else text

    @admin.display(description=_("last error"))
    def error_class(self, job: Job) -> Any:
        """Return the class of the last error without its module."""
        return NOTHING if job.last_error_class is None else job.last_error_class.rpartition(".")[2]

    @admin.display(description=_("queue"))
    def queue_link(self, job: Job) -> Any:
        """Return the queue with a link to it: a paused one is why a due job waits."""
        return self.link(Queue, job.queue, job.queue)

    @admin.display(description=_("worker"))
    def worker(self, job: Job) -> Any:
        """Return the worker with a link to it."""
        return NOTHING if job.worker_id is None else self.link(Worker, job.worker_id, str(job.worker_id))

    @admin.display(description=_("operation key"))
    def operation(self, job: Job) -> str:
        """Return the key of the job's business operation."""
        return job.operation

    @admin.display(description=_("arguments"))
    def arguments(self, job: Job) -> str:
        """Return the arguments as text."""
        if job.purged_at is not None:
            return str(_("purged"))
        payload = JobPayload.objects.using(job_alias()).filter(pk=job.pk).first()
        given = {} if payload is None else {"args": payload.args or [], "kwargs": payload.kwargs or {}}
        return json.dumps(given, ensure_ascii=False)

    @admin.display(description=_("result"))
    def result(self, job: Job) -> str:
        """Return what the job returned, as text."""
        if job.purged_at is not None:
            return str(_("purged"))
        result = JobResult.objects.using(job_alias()).filter(pk=job.pk).first()
        return NOTHING if result is None else json.dumps(result.value, ensure_ascii=False)

    @admin.display(description=_("arguments and result"))
    def hidden(self, job: Job) -> Any:
        """Say what is missing."""
        return _("Hidden: you do not have the permission pgqueue.view_job_args.")

    @admin.display(description=_("limits"))
    def limits(self, job: Job) -> Any:
        """Return links to what bounds it, also where nothing does yet."""
        named = (("queue", job.queue), ("task", job.task), ("tenant", job.tenant), ("resource", job.resource))
        names = [f"{kind}:{name}" for kind, name in named if name]
        return format_html_join(", ", "{}", [(self.link(Limit, name, name),) for name in names])


def _seconds(job: Any, at: datetime) -> float:
    """Return how far an instant lies ahead of when the row was read; negative is past."""
    return float((at - job.now).total_seconds())
