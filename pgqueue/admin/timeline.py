"""What happened to a job, in order: its attempts with their effects, its waits, and what operators did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models.functions import Right
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..failures import FailureClass
from ..models import Attempt, Effect, Job, OperatorAction
from ..protocol.connecting import job_alias
from ..states import AttemptOutcome, Outcome, Stage, State
from .late import LateAnswer, answers_of
from .rights import Reader
from .words import ATTEMPT_OUTCOMES, NOTHING, outcome_words, span, stage_words, stamp, verb_words

LATEST = 20
MOST_REFUSED = 100
"""Refusals that are counted."""
SHORTEST_WAIT_SECONDS = 1.0
LONGEST_TRACEBACK = 6_000
"""Characters shown of each traceback, from its end: the stored ones may have 20,000."""


UNCHARGED = (AttemptOutcome.LOST, AttemptOutcome.UNKNOWN)
"""Outcomes that use up none of a job's attempts."""
CALLS = {
    "did_not_happen": gettext_lazy("settled by a verdict: it did not happen"),
    "withdrawn": gettext_lazy("it proved to have done nothing"),
    "called_again": gettext_lazy("called again by a later attempt, under the same key"),
}
"""What became of a call that is not an effect's latest one."""


@dataclass(frozen=True, slots=True)
class Step:
    """One line of effects within an attempt."""

    text: str
    at: Any
    passed_the_line: bool = False
    is_late: bool = False
    """Said by a worker that had lost the job."""


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the timeline. `kind` is created, attempt, wait, operator or ended."""

    at: datetime
    kind: str
    title: str
    until: datetime | None = None
    worker_id: int | None = None
    fence: int | None = None
    error: str = ""
    traceback: str = ""
    stage: str = ""
    remark: str = ""
    action_id: int | None = None
    steps: tuple[Step, ...] = field(default=())

    @property
    def started(self) -> Any:
        """Return when it began, as markup."""
        return stamp(self.at)

    @property
    def ended(self) -> Any:
        """Return when it ended, as markup; nothing where it is one instant."""
        return "" if self.until is None else stamp(self.until)

    @property
    def lasted(self) -> str:
        """Return how long it took."""
        if self.until is None:
            return ""
        seconds = (self.until - self.at).total_seconds()
        return f"{seconds:.1f} s" if seconds < 120 else str(span(seconds))


@dataclass(frozen=True, slots=True)
class Past:
    """A job's events and late answers, oldest first, and whether older ones were left out."""

    events: list[Event]
    late_answers: list[LateAnswer]
    is_cut: bool


def timeline(job: Job, reader: Reader) -> Past:
    """Return what happened to a job, in four queries, and one more where it has many attempts.

    Attempts are numbered by their claims: one that was not charged has a number too.
    """
    alias = job_alias()
    rows = Attempt.objects.using(alias).filter(job_id=job.pk).order_by("-id").defer("traceback")
    shown = rows.annotate(tail=Right("traceback", LONGEST_TRACEBACK))
    attempts: list[Any] = list(shown[: LATEST + 1])
    count = len(attempts) if len(attempts) <= LATEST else rows.count()
    effects = list(Effect.objects.using(alias).filter(job_id=job.pk).order_by("id")[: LATEST + 1])
    actions = OperatorAction.objects.using(alias).filter(target_kind="job", target_id=str(job.pk)).order_by("-id")
    acted = list(actions.exclude(outcome=Outcome.FORBIDDEN)[: LATEST + 1])
    refused = list(actions.filter(outcome=Outcome.FORBIDDEN).values_list("created_at", flat=True)[: MOST_REFUSED + 1])
    events = [Event(job.created_at, "created", _("Created"))]
    events += [
        _of_attempt(attempt, effects, reader, number=count - place) for place, attempt in enumerate(attempts[:LATEST])
    ]
    events += _of_the_job(job, effects, attempts, number=count + 1)
    events += [_of_action(action, reader) for action in acted[:LATEST]]
    events += _of_refused(refused)
    events.sort(key=lambda event: event.at)
    answers = [answer for attempt in reversed(attempts[:LATEST]) for answer in answers_of(attempt)]
    return Past([*_with_waits(events)], answers, is_cut=max(len(attempts), len(acted)) > LATEST)


def _of_attempt(attempt: Any, effects: list[Effect], reader: Reader, *, number: int) -> Event:
    outcome = ATTEMPT_OUTCOMES.get(attempt.outcome, attempt.outcome)
    if attempt.failure_class == FailureClass.STOPPED:
        outcome = _("stopped as asked")
    remarks = []
    if attempt.outcome in UNCHARGED:
        remarks.append(_("not charged"))
    if attempt.outcome != AttemptOutcome.SUCCEEDED and attempt.stage == Stage.NOT_CALLED:
        remarks.append(_("no effect was begun: it is safe to run again"))
    return Event(
        at=attempt.started_at or attempt.claimed_at or attempt.ended_at,
        kind="attempt",
        title=_("Attempt %(number)d: %(outcome)s") % {"number": number, "outcome": outcome},
        until=attempt.ended_at,
        worker_id=attempt.worker_id,
        fence=attempt.fence,
        error=_error_of(attempt, reader),
        traceback=(attempt.tail or "") if reader.errors else "",
        stage=str(stage_words(attempt.stage)),
        remark="; ".join(map(str, remarks)),
        steps=(*_steps(effects, attempt.fence), *_late_steps(attempt)),
    )


def _error_of(attempt: Any, reader: Reader) -> str:
    if attempt.error_class is None or not reader.errors:
        return attempt.error_class or ""
    return f"{attempt.error_class}: {attempt.message or ''}"


def _of_the_job(job: Job, effects: list[Effect], attempts: Sequence[Attempt], *, number: int) -> Iterable[Event]:
    """A running attempt, and a first one that simply succeeded, are told by the job's own row.

    A job that succeeded by a verdict has no such attempt: the verdict is an operator's action.
    """
    running = job.state == State.RUNNING
    is_told = running or (job.state == State.SUCCEEDED and not attempts)
    if job.claimed_at is None or not is_told or job.fence in {attempt.fence for attempt in attempts}:
        return
    facts = {"number": number, "outcome": _("running") if running else _("succeeded")}
    yield Event(
        at=job.claimed_at if running else job.started_at or job.claimed_at,
        kind="attempt",
        title=_("Attempt %(number)d: %(outcome)s") % facts,
        until=job.finished_at,
        worker_id=job.worker_id if running else job.settled_by,
        fence=job.fence,
        stage=str(stage_words(job.stage)),
        steps=tuple(_steps(effects, job.fence)),
    )


def _late_steps(attempt: Attempt) -> Iterable[Step]:
    """Return what the worker of an attempt said after it had lost the job."""
    for answer in answers_of(attempt):
        yield Step(answer.words(), "", is_late=True)


def _steps(effects: list[Effect], fence: int) -> Iterable[Step]:
    """Return what is on record of the calls of one attempt. A call stays on record whatever became of it."""
    for effect in effects:
        for call in effect.earlier_calls or ():
            if call["fence"] == fence:
                yield from _earlier_steps(effect, call)
    for effect in effects:
        if effect.fence != fence:
            continue
        facts = {"name": effect.name, "key": effect.operation_key, "reference": effect.remote_reference or NOTHING}
        if effect.called_at is not None:
            yield Step(_("%(name)s: may be sent from here on, key %(key)s") % facts, stamp(effect.called_at), True)
        if effect.known_at is not None:
            yield Step(_("%(name)s: result known, reference %(reference)s") % facts, stamp(effect.known_at))
        elif effect.stage == Stage.OUTCOME_UNKNOWN:
            yield Step(_("%(name)s: its outcome is unknown") % facts, NOTHING)
        if effect.confirmed_at is not None:
            yield Step(_("%(name)s: confirmed") % facts, stamp(effect.confirmed_at))


def _earlier_steps(effect: Effect, call: dict[str, Any]) -> Iterable[Step]:
    facts = {"name": effect.name, "key": effect.operation_key, "became": CALLS.get(call["became"], call["became"])}
    called_at = stamp(parse_datetime(call["called_at"]))
    yield Step(_("%(name)s: may be sent from here on, key %(key)s") % facts, called_at, True)
    yield Step(_("%(name)s: %(became)s") % facts, "")


def _of_refused(refused: Sequence[datetime]) -> Iterable[Event]:
    """Fold what people tried who were not allowed to: it changed nothing, and must not push out what did."""
    if not refused:
        return
    number = len(refused)
    words = ngettext("%(number)d attempt was forbidden", "%(number)d attempts were forbidden", number)
    many = _("more than %(number)d attempts were forbidden") % {"number": MOST_REFUSED}
    title = many if number > MOST_REFUSED else words % {"number": number}
    yield Event(at=refused[0], kind="operator", title=title, remark=_("Nothing was done. The audit log has each."))


def _of_action(action: OperatorAction, reader: Reader) -> Event:
    facts = {
        "who": action.actor_name,
        "verb": verb_words(action.verb),
        "outcome": outcome_words(action.outcome),
    }
    words = (action.reason, action.ticket) if reader.reasons else ()
    return Event(
        at=action.created_at,
        kind="operator",
        title=_("%(who)s: %(verb)s, %(outcome)s") % facts,
        remark=" ".join(filter(None, (*words, *_further(action)))),
        action_id=action.pk,
    )


def _further(action: OperatorAction) -> Iterable[str]:
    """Say who approved what another one asked for, and which job was made."""
    if action.facts.get("approved_by"):
        yield _("(approved by %(who)s)") % {"who": action.facts["approved_by"]}
    if action.facts.get("new_job"):
        yield _("(new job %(id)s)") % {"id": str(action.facts["new_job"])}


def _with_waits(events: list[Event]) -> Iterable[Event]:
    """Say between two attempts how long the job waited."""
    end: datetime | None = None
    for event in events:
        if event.kind == "attempt":
            if end is not None and (event.at - end).total_seconds() >= SHORTEST_WAIT_SECONDS:
                yield Event(end, "wait", _("Waited"), until=event.at)
            end = event.until
        yield event
