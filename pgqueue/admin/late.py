"""What lost workers said too late: answers of calls, and endings."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext as _

from ..models import Attempt
from ..protocol.connecting import job_alias
from ..states import State
from ..verbs import OVERRULING
from .words import instant

MOST_ATTEMPTS = 20
"""Attempts whose late answers a page looks for, the latest first."""


@dataclass(frozen=True, slots=True)
class LateAnswer:
    """One thing that a worker said about an attempt after it had lost the job.

    `effect` is the name of the call that came back, None for an ending. `said` is the result, or the error's class.
    """

    at: datetime | None
    worker_id: int | None
    fence: int
    effect: str | None
    reference: str | None
    result: Any
    ending: str | None

    def words(self) -> str:
        """Return in a sentence what was said, without the result: that may be private."""
        facts = {
            "worker": self.worker_id,
            "at": instant(self.at),
            "effect": self.effect,
            "reference": self.reference or _("without a reference"),
            "ending": self.ending,
        }
        if self.effect is None:
            return _("Worker %(worker)s told its ending too late, at %(at)s: %(ending)s.") % facts
        told = _("Worker %(worker)s got an answer from %(effect)s after it had lost the job, at %(at)s: %(reference)s.")
        return told % facts


def late_answers(job_id: int) -> list[LateAnswer]:
    """Return what was said too late about a job's latest attempts, oldest first."""
    rows = Attempt.objects.using(job_alias()).filter(job_id=job_id, evidence__isnull=False).order_by("-id")
    attempts = list(rows.only("evidence", "worker_id", "fence")[:MOST_ATTEMPTS])
    return [answer for attempt in reversed(attempts) for answer in answers_of(attempt)]


def answers_of(attempt: Attempt) -> Iterable[LateAnswer]:
    """Return what was said too late about one attempt; nothing of a purged one."""
    for told in attempt.evidence if isinstance(attempt.evidence, list) else ():
        if isinstance(told, dict):
            yield LateAnswer(
                at=_instant(told.get("at")),
                worker_id=attempt.worker_id,
                fence=attempt.fence,
                effect=told.get("effect"),
                reference=told.get("remote_reference"),
                result=told.get("result"),
                ending=told.get("ending"),
            )


def late_facts(job: Any) -> list[tuple[Any, str]]:
    """Return what speaks for or against a verdict, as label and value; only a job that waits for one needs it."""
    answers = late_answers(job.pk) if job.state == State.UNKNOWN else []
    return [(_("Late answer"), answer.words()) for answer in answers]


def prefilled(verb: str, job_id: int, effects: Collection[str] | None, *, with_result: bool) -> dict[str, str]:
    """Return what a verdict's form begins with, given the effects that it can be about; None is any.

    A verdict that a late answer speaks against gets nothing from it but the box that overrules it.
    """
    about = [
        answer for answer in late_answers(job_id) if answer.effect and (effects is None or answer.effect in effects)
    ]
    if not about:
        return {}
    answer = about[-1]
    if verb in OVERRULING:
        return {"late": "1"}
    told = {"effect": answer.effect or "", "evidence": answer.words(), "remote_reference": answer.reference or ""}
    if with_result and answer.result is not None:
        told["result"] = json.dumps(answer.result, ensure_ascii=False)
    return told


def _instant(text: Any) -> datetime | None:
    try:
        return parse_datetime(text) if isinstance(text, str) else None
    except ValueError:
        return None
