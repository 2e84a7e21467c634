"""What the console calls things, and how it writes instants."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from django.contrib import admin
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..protocol.tolerating import FarInstant
from ..states import Outcome, Stage, State

NOTHING = "-"

SCHEDULED = "scheduled"
"""A pending job whose time has not come, as a list calls it."""

STATES: dict[str, tuple[str, Any]] = {
    SCHEDULED: ("◷", _("Scheduled")),
    State.PENDING: ("○", _("Ready")),
    State.RETRYING: ("↻", _("Waiting to retry")),
    State.RUNNING: ("▶", _("Running")),
    State.PAUSED: ("‖", _("Held")),
    State.UNKNOWN: ("?", _("Outcome unknown")),
    State.SUCCEEDED: ("✓", _("Succeeded")),
    State.DEAD: ("✕", _("Failed, gave up")),
    State.CANCELLED: ("⊘", _("Cancelled")),
}
"""Sign and words of a job's state: never the colour alone."""

QUEUE_STATES = {"active": _("active"), "paused": _("paused")}

WORKER_STATES = {
    "alive": _("alive"),
    "draining": _("draining"),
    "silent": _("SILENT"),
    "stopped": _("stopped"),
}

REQUEST_STATES = {
    "waiting": _("waits for approval"),
    "approved": _("approved"),
    "declined": _("declined"),
    "expired": _("expired"),
}

STAGES = {
    Stage.NOT_CALLED: _("not called: no effect was begun"),
    Stage.OUTCOME_UNKNOWN: _("outcome unknown: the request may have been sent"),
    Stage.RESULT_KNOWN: _("result known"),
    Stage.CONFIRMING: _("confirming"),
    Stage.CONFIRMED: _("confirmed"),
}

ATTEMPT_OUTCOMES = {
    "succeeded": _("succeeded"),
    "failed": _("failed"),
    "lost": _("lease lost"),
    "unknown": _("outcome unknown"),
}

OUTCOME_WORDS = {
    Outcome.APPLIED: _("applied"),
    Outcome.CHANGED: _("changed meanwhile, nothing done"),
    Outcome.REFUSED_RUNNING: _("running, nothing done"),
    Outcome.REFUSED_UNKNOWN: _("outcome unknown, nothing done"),
    Outcome.REFUSED_STATE: _("not possible as it stands, nothing done"),
    Outcome.REFUSED_DUPLICATE: _("another job of its unique key is there, nothing done"),
    Outcome.GONE: _("gone, nothing done"),
    Outcome.BUSY: _("busy, nothing done"),
    Outcome.REPLAYED: _("already done, not done twice"),
    Outcome.FORBIDDEN: _("forbidden, nothing done"),
    Outcome.REQUESTED: _("asked for, waits for approval"),
}

VERB_LABELS = {
    "requeue": _("Requeue job"),
    "cancel": _("Cancel job"),
    "hold": _("Hold job"),
    "unhold": _("Unhold job"),
    "give_up": _("Give up job"),
    "ask_to_stop": _("Ask job to stop"),
    "break_lease": _("Break lease"),
    "happened": _("It happened"),
    "happened_finish": _("It happened, nothing is left to do"),
    "compensate": _("It happened wrongly: run the compensation"),
    "did_not_happen": _("It did not happen"),
    "give_up_unknown": _("Cannot tell, give up"),
    "ask_again": _("Ask the other side again"),
    "take": _("Take"),
    "hand_over": _("Hand over"),
    "snooze": _("Snooze"),
    "clone": _("Run again as a new job"),
    "purge": _("Purge arguments and result"),
    "run_now": _("Run now"),
    "reschedule": _("Reschedule"),
    "reprioritise": _("Change priority"),
    "move_queue": _("Move to another queue"),
    "pause_queue": _("Pause queue"),
    "resume_queue": _("Resume queue"),
    "export": _("Export"),
    "prune": _("Delete old jobs"),
    "skip_head": _("Let others of its key pass"),
    "set_limit": _("Set how many run at once"),
    "set_rate": _("Set how many start per second"),
    "set_weight": _("Set the tenant's weight"),
    "pause_jobs": _("Pause jobs"),
    "resume_jobs": _("Resume jobs"),
    "drain_worker": _("Drain worker"),
    "forget_worker": _("Forget worker"),
    "approve": _("Approve"),
    "decline": _("Decline"),
}

OUTCOMES = {
    Outcome.APPLIED: _("{verb}: done. Audit entry {audit_id}."),
    Outcome.REPLAYED: _("{verb}: already done at {at}, not done twice. Audit entry {audit_id}."),
    Outcome.CHANGED: _("Changed since you looked: nothing was done."),
    Outcome.REFUSED_RUNNING: _("The job is running: nothing was done."),
    Outcome.REFUSED_UNKNOWN: _("The outcome of one of the job's effects is unknown: nothing was done."),
    Outcome.REFUSED_STATE: _("As it stands, this cannot be done to it: nothing was done."),
    Outcome.REFUSED_DUPLICATE: _("Another job of its unique key is there: nothing was done."),
    Outcome.GONE: _("It does not exist any more: nothing was done."),
    Outcome.BUSY: _("Somebody else is working on it at this moment: nothing was done. Try again."),
    Outcome.FORBIDDEN: _("You do not have the permission: nothing was done."),
    Outcome.REQUESTED: _(
        "{verb}: asked for. Nothing is done before somebody else approves it. Audit entry {audit_id}."
    ),
}
ASKED_BEFORE = _("{verb}: already asked for at {at}, not asked for twice. Audit entry {audit_id}.")


TIMES = {
    "created_at": _("created"),
    "run_at": _("due"),
    "claimed_at": _("claimed"),
    "started_at": _("started"),
    "finished_at": _("finished"),
    "stop_requested_at": _("stop requested"),
    "probe_at": _("next probe"),
    "purged_at": _("purged"),
    "compensated_at": _("compensated"),
}
"""Instants of a job, in the order in which they come."""


def queue_words(state: str) -> Any:
    """Return what a queue's state is called."""
    return QUEUE_STATES.get(state, state)


def worker_words(state: str) -> Any:
    """Return what a worker's state is called."""
    return WORKER_STATES.get(state, state)


def request_words(state: str) -> Any:
    """Return what the state of a request for approval is called."""
    return REQUEST_STATES.get(state, state)


def state_words(state: str) -> Any:
    """Return what a job's state is called; one that this release does not know is called what it is."""
    # A pending job may be either: only the row tells.
    return _("Ready or scheduled") if state == State.PENDING else STATES.get(state, ("", state))[1]


def state_in_full(state: str) -> str:
    """Return what a job's state is called, and its technical word where that is another one; as text."""
    words = str(state_words(state))
    return words if words.casefold() == state else f"{words} ({state})"


def verb_words(verb: str) -> Any:
    """Return what a verb is called; one that this release does not know is called what it is."""
    return VERB_LABELS.get(verb, verb)


def outcome_words(outcome: str) -> Any:
    """Return what came of an action, in words."""
    return OUTCOME_WORDS.get(outcome, outcome)  # type: ignore[call-overload]


def stage_words(stage: str) -> Any:
    """Return how far an effect got, in words."""
    return STAGES.get(stage, stage)  # type: ignore[call-overload]


def instant(value: datetime | None) -> str:
    """Write an instant to the second, in the current time zone and with its name.

    Without `USE_TZ` the database answers in the default time zone, without saying so.
    """
    if value is None:
        return NOTHING
    if isinstance(value, FarInstant):
        return gettext("a time that cannot be shown (%(text)s)") % {"text": value.text}
    aware = timezone.make_aware(value, timezone.get_default_timezone()) if timezone.is_naive(value) else value
    return f"{timezone.localtime(aware):%Y-%m-%d %H:%M:%S %Z}"


def stamp(value: datetime | None) -> Any:
    """Write an instant as markup: machine-readable, and with UTC in its title."""
    if value is None or isinstance(value, FarInstant):
        return instant(value)
    aware = timezone.make_aware(value, timezone.get_default_timezone()) if timezone.is_naive(value) else value
    utc = aware.astimezone(UTC)
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', utc.isoformat(), f"{utc:%Y-%m-%d %H:%M:%S} UTC", instant(value)
    )


def span(seconds: float) -> str:
    """Write a length of time in its one fitting unit: "74 s", "12 min", "3 h", "2 d"."""
    seconds = abs(seconds)
    if not math.isfinite(seconds):
        return "∞"
    if seconds < 120:
        return _("%(number)d s") % {"number": seconds}
    if seconds < 2 * 3600:
        return _("%(number)d min") % {"number": seconds // 60}
    if seconds < 2 * 86_400:
        return _("%(number)d h") % {"number": seconds // 3600}
    return _("%(number)d d") % {"number": seconds // 86_400}


def pause_words(queue: dict[str, Any]) -> str:
    """Say who paused a queue, when, why, and until when."""
    facts = {
        "name": queue["name"],
        "ago": span(queue["seconds"]),
        "who": queue["by"] or NOTHING,
        "why": queue["reason"] or NOTHING,
        "left": span(queue["left_seconds"] or 0.0),
    }
    if queue["left_seconds"] is None:
        return gettext("Queue “%(name)s” was paused %(ago)s ago by %(who)s: “%(why)s”. No end is set.") % facts
    return gettext("Queue “%(name)s” was paused %(ago)s ago by %(who)s: “%(why)s”. It resumes in %(left)s.") % facts


def pause_of(queue: Any) -> str:
    """Say of a queue's row who paused it; nothing of one that is not paused."""
    over = queue.paused_until is not None and queue.paused_until <= queue.now
    if queue.paused_at is None or over:
        return ""
    left = None if queue.paused_until is None else (queue.paused_until - queue.now).total_seconds()
    facts = {"name": queue.name, "by": queue.paused_by, "reason": queue.pause_reason, "left_seconds": left}
    return pause_words({**facts, "seconds": (queue.now - queue.paused_at).total_seconds()})


def effect_words(effect: Any) -> str:
    """Say how far an effect got, and under which names the other side knows it."""
    facts = {
        "stage": stage_words(effect.stage),
        "key": effect.operation_key,
        "reference": effect.remote_reference or NOTHING,
        "called": instant(effect.called_at),
    }
    return str(_("%(stage)s; called %(called)s under key %(key)s; reference %(reference)s") % facts)


def instant_of(field: str, label: Any) -> Any:
    """Return a column of the admin that shows a field as `instant` writes it."""

    @admin.display(description=label)
    def column(row: Any) -> Any:
        return stamp(getattr(row, field))

    return column
