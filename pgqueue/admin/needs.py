"""The overview's sentences: what needs a person and why, and numbers that say what kind of number they are."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..protocol import surveying
from ..protocol.blocking import Blocker
from ..protocol.surveying import Live, Silent
from .words import span, verb_words


def capped(number: int, *, more: bool = False) -> str:
    """Write a count; one that stopped at the cap says so."""
    most = surveying.COUNTED_AT_MOST
    return f"≥ {min(number, most):,}" if number > most or more else f"{number:,}"


def no_worker_words(live: Live) -> str:
    """Say that due jobs wait and that nobody takes them."""
    number = capped(live.ready, more=live.waiting_is_capped)
    return ngettext(
        "No worker is alive: %(number)s job waits. Start one: manage.py runworker.",
        "No worker is alive: %(number)s jobs wait. Start one: manage.py runworker.",
        live.ready,
    ) % {"number": number}


def silent_words(worker: Silent) -> str:
    """Say of a silent worker what it still holds, and what there is to do."""
    facts = {"id": worker.id, "host": worker.host, "pid": worker.pid, "silent": span(worker.silent_seconds)}
    text = _("Worker %(id)s on %(host)s has been silent for %(silent)s.") % facts
    if not worker.leases or worker.expiry_seconds is None:
        missed = _(
            "It holds no job. No other worker has started after it was last heard and takes from just the same queues: "
            "start one if it is missed, or have it forgotten."
        )
        return f"{text} {missed}"
    left = {"leases": worker.leases, "left": span(worker.expiry_seconds)}
    held = (
        _("Leases it holds: %(leases)d; the first ran out %(left)s ago.")
        if worker.expiry_seconds < 0
        else _("Leases it holds: %(leases)d; the first ends in %(left)s.")
    )
    what = _("A worker that is alive takes its jobs over then. See there whether process %(pid)d hangs or is gone.")
    return f"{text} {held % left} {what % facts}"


def blocker_words(blocker: Blocker) -> str:
    """Say that a job cannot be taken over, which session holds its row, and what there is to do."""
    facts = {
        "id": blocker.job_id,
        "ago": span(blocker.expired_seconds),
        "pid": blocker.pid,
        "role": blocker.role or "?",
        "state": blocker.state or "?",
    }
    return (
        _(
            "The lease of job %(id)s ran out %(ago)s ago, and no worker can take it over: session %(pid)s of role "
            "%(role)s (%(state)s) holds its row. End that session: SELECT pg_terminate_backend(%(pid)s)."
        )
        % facts
    )


def unknown_words(live: Live) -> str:
    """Say how many outcomes are unknown, and which one for longest."""
    facts = {
        "number": live.unknown,
        "age": span(live.oldest_unknown_seconds or 0.0),
        "task": live.oldest_unknown_task,
        "id": live.oldest_unknown_id,
    }
    return (
        ngettext(
            "%(number)d job has an unknown outcome, for %(age)s (%(task)s #%(id)s).",
            "%(number)d jobs have an unknown outcome, the oldest for %(age)s (%(task)s #%(id)s).",
            live.unknown,
        )
        % facts
    )


def asked_words(live: Live) -> str:
    """Say how many requests wait for approval, and which one for longest."""
    oldest = live.asked_for[0]
    facts = {
        "number": len(live.asked_for),
        "age": span(oldest["seconds"]),
        "verb": verb_words(oldest["verb"]),
        "target": f"{oldest['kind']} {oldest['target']}",
        "who": oldest["by"],
    }
    return (
        ngettext(
            "%(number)d request waits for approval, for %(age)s (%(verb)s, %(target)s, asked for by %(who)s).",
            "%(number)d requests wait for approval, the oldest for %(age)s (%(verb)s, %(target)s, asked for by "
            "%(who)s).",
            len(live.asked_for),
        )
        % facts
    )


def rows_words(live: Live) -> str:
    """Write how many jobs the table has: exact where they are few, else marked as what it is."""
    if live.table_rows is not None and live.table_rows <= surveying.COUNTED_AT_MOST:
        return f"{live.table_rows:,}"
    if live.table_estimate is not None and live.table_estimate > surveying.COUNTED_AT_MOST:
        return _("~ %(rows)s (estimate)") % {"rows": f"{live.table_estimate:,}"}
    return _("not known yet") if live.table_rows is None else capped(live.table_rows)
