"""What happened to a job, in order: its attempts with their effects, its waits, and what operators did."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.utils.translation import gettext as _

from ..models import Attempt, Effect, Job, OperatorAction
from ..protocol.connecting import job_alias
from ..states import AttemptOutcome, Stage, State
from .words import ATTEMPT_OUTCOMES, NOTHING, outcome_words, span, stage_words, stamp, verb_words

LATEST = 20
SHORTEST_WAIT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Step:
    """One line of effects within an attempt."""

    text: str
    at: Any
    passed_the_line: bool = False


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


def timeline(job: Job) -> tuple[list[Event], bool]:
    """Return a job's events, oldest first, and whether older attempts or actions were left out. Three queries."""
    alias = job_alias()
    attempts = list(Attempt.objects.using(alias).filter(job_id=job.pk).order_by("-id").defer("traceback")[: LATEST + 1])
    effects = list(Effect.objects.using(alias).filter(job_id=job.pk).order_by("id")[: LATEST + 1])
    actions = OperatorAction.objects.using(alias).filter(target_kind="job", target_id=str(job.pk)).order_by("-id")
    acted = list(actions[: LATEST + 1])
    events = [Event(job.created_at, "created", _("Created"))]
    events += [_of_attempt(attempt, effects) for attempt in attempts[:LATEST]]
    if job.fence not in {attempt.fence for attempt in attempts}:
        events += _of_the_job(job, effects)
    events += [_of_action(action) for action in acted[:LATEST]]
    events.sort(key=lambda event: event.at)
    return [*_with_waits(events)], max(len(attempts), len(acted)) > LATEST


def _of_attempt(attempt: Attempt, effects: list[Effect]) -> Event:
    outcome = ATTEMPT_OUTCOMES.get(attempt.outcome, attempt.outcome)
    mine = [effect for effect in effects if effect.fence == attempt.fence]
    remark = ""
    if attempt.outcome != AttemptOutcome.SUCCEEDED and attempt.stage == Stage.NOT_CALLED:
        remark = _("no effect was begun: it is safe to run again")
    return Event(
        at=attempt.started_at or attempt.claimed_at or attempt.ended_at,
        kind="attempt",
        title=_("Attempt %(number)d: %(outcome)s") % {"number": attempt.number, "outcome": outcome},
        until=attempt.ended_at,
        worker_id=attempt.worker_id,
        fence=attempt.fence,
        error="" if attempt.error_class is None else f"{attempt.error_class}: {attempt.message or ''}",
        stage=str(stage_words(attempt.stage)),
        remark=remark,
        steps=tuple(_steps(mine)),
    )


def _of_the_job(job: Job, effects: list[Effect]) -> Iterable[Event]:
    """A running attempt, and a first one that simply succeeded, are told by the job's own row."""
    if job.claimed_at is None or job.state not in (State.RUNNING, State.SUCCEEDED):
        return
    running = job.state == State.RUNNING
    facts = {"number": job.attempts + (1 if running else 0), "outcome": _("running") if running else _("succeeded")}
    yield Event(
        at=job.claimed_at if running else job.started_at or job.claimed_at,
        kind="attempt",
        title=_("Attempt %(number)d: %(outcome)s") % facts,
        until=job.finished_at,
        worker_id=job.worker_id if running else job.settled_by,
        fence=job.fence,
        stage=str(stage_words(job.stage)),
        steps=tuple(_steps([effect for effect in effects if effect.fence == job.fence])),
    )


def _steps(effects: list[Effect]) -> Iterable[Step]:
    for effect in effects:
        facts = {"name": effect.name, "key": effect.operation_key, "reference": effect.remote_reference or NOTHING}
        if effect.called_at is not None:
            yield Step(_("%(name)s: may be sent from here on, key %(key)s") % facts, stamp(effect.called_at), True)
        if effect.known_at is not None:
            yield Step(_("%(name)s: result known, reference %(reference)s") % facts, stamp(effect.known_at))
        elif effect.stage == Stage.OUTCOME_UNKNOWN:
            yield Step(_("%(name)s: its outcome is unknown") % facts, NOTHING)
        if effect.confirmed_at is not None:
            yield Step(_("%(name)s: confirmed") % facts, stamp(effect.confirmed_at))


def _of_action(action: OperatorAction) -> Event:
    facts = {
        "who": action.actor_name,
        "verb": verb_words(action.verb),
        "outcome": outcome_words(action.outcome),
    }
    return Event(
        at=action.created_at,
        kind="operator",
        title=_("%(who)s: %(verb)s, %(outcome)s") % facts,
        remark=" ".join(filter(None, (action.reason, action.ticket, *_further(action)))),
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
