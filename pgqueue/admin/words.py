"""What the console calls things, and how it writes instants."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib import admin
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..states import Outcome

NOTHING = "-"

VERB_LABELS = {
    "requeue": _("Requeue job"),
    "cancel": _("Cancel job"),
    "hold": _("Hold job"),
    "unhold": _("Unhold job"),
    "give_up": _("Give up job"),
    "ask_to_stop": _("Ask job to stop"),
    "break_lease": _("Break lease"),
    "pause_queue": _("Pause queue"),
    "resume_queue": _("Resume queue"),
}

CONSEQUENCES = {
    "requeue": _("The job is due now, with at least one more attempt. Its attempts and errors are kept."),
    "cancel": _("The job will not run. It can be requeued later."),
    "hold": _("The job waits until somebody unholds it."),
    "unhold": _("The job goes back to where it was held, and runs when it is due."),
    "give_up": _("The job is dead. It can be requeued later."),
    "ask_to_stop": _("A request: the job stays running until its code honours it or its worker is lost."),
    "break_lease": _(
        "The worker loses the job now, and nothing it still writes is accepted, but it may go on running. The job is "
        "retried, or cancelled if a stop was requested. If its task is undeclared, or the outcome of an effect is "
        "unknown and its task is not idempotent, it becomes unknown instead and waits for a person."
    ),
    "pause_queue": _("No worker takes from this queue any more, until somebody resumes it. Running jobs go on."),
    "resume_queue": _("Workers take from this queue again."),
}

OUTCOMES = {
    Outcome.APPLIED: _("%(verb)s: done. Audit entry %(audit_id)s."),
    Outcome.REPLAYED: _("%(verb)s: already done at %(at)s, not done twice. Audit entry %(audit_id)s."),
    Outcome.CHANGED: _("Changed since you looked: nothing was done."),
    Outcome.REFUSED_RUNNING: _("The job is running: nothing was done."),
    Outcome.REFUSED_UNKNOWN: _("The outcome of one of the job's effects is unknown: nothing was done."),
    Outcome.REFUSED_STATE: _("As it stands, this cannot be done to it: nothing was done."),
    Outcome.GONE: _("It does not exist any more: nothing was done."),
    Outcome.BUSY: _("Somebody else is working on it at this moment: nothing was done. Try again."),
    Outcome.FORBIDDEN: _("You do not have the permission: nothing was done."),
}


def instant(value: datetime | None) -> str:
    """Write an instant to the second, in the current time zone and with its name.

    Without `USE_TZ` the database answers in the default time zone, without saying so.
    """
    if value is None:
        return NOTHING
    aware = timezone.make_aware(value, timezone.get_default_timezone()) if timezone.is_naive(value) else value
    return f"{timezone.localtime(aware):%Y-%m-%d %H:%M:%S %Z}"


def span(seconds: float) -> str:
    """Write a length of time in its one fitting unit: "74 s", "12 min", "3 h", "2 d"."""
    seconds = abs(seconds)
    if seconds < 120:
        return _("%(number)d s") % {"number": seconds}
    if seconds < 2 * 3600:
        return _("%(number)d min") % {"number": seconds // 60}
    if seconds < 2 * 86_400:
        return _("%(number)d h") % {"number": seconds // 3600}
    return _("%(number)d d") % {"number": seconds // 86_400}


def instant_of(field: str, label: Any) -> Any:
    """Return a column of the admin that shows a field as `instant` writes it."""

    @admin.display(description=label)
    def column(row: Any) -> str:
        return instant(getattr(row, field))

    return column
