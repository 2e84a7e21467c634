"""Why a waiting job waits, in words and with a link to what holds it up: the rules are those of `pgqueue_status`."""

from __future__ import annotations

from typing import Any

from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from .. import conf
from ..models import Job, Limit, Queue
from ..protocol.connecting import job_alias
from ..protocol.counting import Standing, Wait, standings, waits_of
from ..protocol.surveying import COUNTED_AT_MOST
from ..protocol.viewing import TooSlowError, bounded
from ..states import WAITING, State
from .base import ReadOnlyAdmin
from .words import instant

REASONS = {
    "queue_paused": _("Its queue {name} is paused."),
    "jobs_paused": _("{name} is paused."),
    "task_unknown": _("No live worker knows its task."),
    "queue_unserved": _("No live worker that knows its task takes from its queue {name}."),
    "key_busy": _("It is behind job {name} of its shard key, which runs."),
    "key_blocked": _(
        "It is behind job {name} of its shard key, whose order is strict: until that one ends, or others may pass it."
    ),
    "limit_reached": _("The limit of {name} is reached."),
    "rate_spent": _("The rate of {name} is used up for now."),
    "runs_alone": _(
        "It lost a lease before, so it runs alone: in a process of its own, or in a worker that holds nothing else."
    ),
}
"""By the names of `Standing`; what is due, or scheduled for later, needs no reason."""
GROUPS = {
    "due": _("nothing holds them up: the next free worker takes them"),
    "queue_paused": _("their queue is paused"),
    "jobs_paused": _("their tenant, task or resource is paused"),
    "task_unknown": _("no live worker knows their task"),
    "queue_unserved": _("no live worker that knows their task takes from their queue"),
    "key_busy": _("behind a running job of their shard key"),
    "key_blocked": _("behind an unfinished job of their shard key, whose order is strict"),
    "limit_reached": _("the limit of their queue, tenant, task or resource is reached"),
    "rate_spent": _("the rate of their queue, tenant, task or resource is used up for now"),
    "runs_alone": _("lost a lease before, and run alone"),
}
"""What due jobs of the overview wait for."""
LINKED: dict[str, Any] = {
    **dict.fromkeys(("queue_paused", "queue_unserved"), Queue),
    **dict.fromkeys(("key_busy", "key_blocked"), Job),
    **dict.fromkeys(("jobs_paused", "limit_reached", "rate_spent"), Limit),
}


def note_waits(rows: list[Any]) -> None:
    """Give each job of a page its `wait`, with one query where any of them is due; None where it took too long."""
    due = [row.pk for row in rows if row.state in WAITING and row.run_at <= row.now]
    found: dict[int, Wait] | None = {}
    if due:
        try:
            # Half of a page's time: the rest of it is shown in any case.
            with bounded(job_alias(), timeout_seconds=conf.current().console_timeout_seconds / 2):
                found = waits_of(job_alias(), due)
        except TooSlowError:
            found = None
    for row in rows:
        row.wait = None if found is None else found.get(row.pk)


def why_it_waits(admin: ReadOnlyAdmin, job: Any) -> Any:
    """Return in a sentence what a waiting job waits for, of whatever kind that is."""
    if job.run_at > job.now:
        text = _("Next attempt at %(at)s.") if job.state == State.RETRYING else _("Scheduled for %(at)s.")
        return text % {"at": instant(job.run_at)}
    note_waits([job])
    if job.wait is None:
        return _("Why it waits took too long to find out.")
    return reason_of(admin, job.wait) or _("Nothing holds it up: the next free worker takes it.")


def reason_of(admin: ReadOnlyAdmin, wait: Wait | None) -> Any:
    """Return in a sentence why a job waits; nothing where nothing but a free worker is missing."""
    if wait is None or wait.standing not in REASONS:
        return ""
    name = f"#{wait.waits_for}" if LINKED.get(wait.standing) is Job else wait.waits_for or ""
    model = LINKED.get(wait.standing)
    shown = name if model is None else admin.link(model, wait.waits_for, name)
    return format_html(str(REASONS[wait.standing]), name=shown)


def due_groups(alias: str) -> list[Standing]:
    """Return what due jobs wait for, the largest group first; as many rows are looked at as the overview counts."""
    found = [each for each in standings(alias, cap=COUNTED_AT_MOST) if each.name in GROUPS]
    return sorted(found, key=lambda each: -each.jobs)
