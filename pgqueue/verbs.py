"""The operator's verbs: on what they act, in which states, with which permission, and why one does not apply."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from . import verb_params as given_as
from .exceptions import LONGEST_NAME
from .refusals import VerbParamsError
from .states import FINAL, LIMIT_KINDS, WAITING, Outcome, Recovery, Stage, State
from .verb_params import LONGEST_PAUSE_SECONDS, Params

ACTIVE, PAUSED = "active", "paused"
"""States of a queue, and of a row of limits."""
APPROVE, CLONE, COMPENSATE = "approve", "clone", "compensate"
ALIVE, DRAINING, SILENT, STOPPED = "alive", "draining", "silent", "stopped"
"""States of a worker: a silent one has not been heard for a whole lease."""
NUMBERS = ("for_seconds", "delay_seconds", "priority")
"""Params that are numbers."""
LEVEL_OF_MANY = 2
"""Verbs on jobs of this level take many of them at once: none needs the job's number typed."""


@dataclass(frozen=True, slots=True)
class Verb:
    """One thing an operator may do to a job, a queue, or what bounds the jobs of a queue, tenant, task or resource."""

    name: str
    kind: str
    permission: str
    states: tuple[str, ...]
    """States of the target in which it applies."""
    over_unknown_effects: bool = True
    """Whether it may be used while the outcome of an effect is unknown."""
    level: int = 2
    """1 needs no reason; 2 does; 3 also the target's number typed by hand, where a person clicks."""
    params: Params = lambda facts, given: {}
    """Statement parameters from the locked row's facts and the caller's params."""
    needs: tuple[str, ...] = ()
    """Params that must be given, each a text but those of `NUMBERS`."""
    statement: str = ""
    """Its statement, where that is not of its name."""
    limits: tuple[str, ...] = LIMIT_KINDS
    """Kinds of limits that it is for."""

    @property
    def takes_many(self) -> bool:
        """Whether its statement takes many jobs at once."""
        return self.kind == "job" and self.level == LEVEL_OF_MANY

    def check(self, given: Mapping[str, Any]) -> None:
        """Raise `VerbParamsError` for params that cannot be used, before anything is looked at."""
        for name in self.needs:
            if name in NUMBERS and isinstance(given.get(name), int | float):
                continue
            if not (isinstance(given.get(name), str) and given[name].strip()):
                raise VerbParamsError(self.name, name, "is missing: give one that says something")
        if len(given.get("queue", "")) > LONGEST_NAME:
            raise VerbParamsError(self.name, "queue", f"is longer than {LONGEST_NAME} characters")
        seconds = given.get("for_seconds")
        # A pause that ends before it begins would be answered `applied` and stop nothing.
        if seconds is not None and not 0 < seconds <= LONGEST_PAUSE_SECONDS:
            raise VerbParamsError(self.name, "for_seconds", f"is {seconds!r}: give a time greater than zero, or none")


_DECIDING = (
    *("unknown_effects", "stop_requested", "stage", "recovery"),
    *("is_purged", "is_compensated", "compensation", "leases"),
)
"""Facts of a target that decide beside its state."""
_TOGETHER = (ACTIVE, PAUSED)
_NOT_QUEUES = LIMIT_KINDS[1:]
"""A queue has a pause of its own."""

VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb("requeue", "job", "requeue_job", (State.DEAD, State.CANCELLED), params=given_as.delaying),
        Verb("cancel", "job", "cancel_job", (*WAITING, State.PAUSED), over_unknown_effects=False),
        Verb("hold", "job", "hold_job", WAITING),
        Verb("unhold", "job", "hold_job", (State.PAUSED,)),
        Verb("give_up", "job", "discard_job", (*WAITING, State.UNKNOWN), over_unknown_effects=False),
        Verb("ask_to_stop", "job", "cancel_job", (State.RUNNING,)),
        Verb("break_lease", "job", "break_lease", (State.RUNNING,), level=3, params=given_as.breaking),
        Verb(
            "happened",
            "job",
            "resolve_unknown",
            (State.UNKNOWN,),
            level=3,
            params=given_as.happened(State.RETRYING),
            needs=("remote_reference", "evidence"),
            statement="reconcile",
        ),
        Verb(
            "happened_finish",
            "job",
            "resolve_unknown",
            (State.UNKNOWN,),
            level=3,
            params=given_as.happened(State.SUCCEEDED),
            needs=("remote_reference", "evidence"),
            statement="reconcile",
        ),
        Verb(
            COMPENSATE,
            "job",
            "resolve_unknown",
            (State.UNKNOWN,),
            level=3,
            params=given_as.compensating,
            needs=("remote_reference", "evidence"),
            statement="reconcile",
        ),
        Verb(
            "did_not_happen",
            "job",
            "resolve_unknown",
            (State.UNKNOWN,),
            level=3,
            params=given_as.did_not_happen,
            needs=("evidence",),
            statement="reconcile",
        ),
        Verb(
            "give_up_unknown",
            "job",
            "resolve_unknown",
            (State.UNKNOWN,),
            level=3,
            params=given_as.giving_up_unknown,
            statement="reconcile",
        ),
        Verb("ask_again", "job", "triage_unknown", (State.UNKNOWN,), level=1),
        Verb("take", "job", "triage_unknown", (State.UNKNOWN,), level=1, params=given_as.taking, statement="assign"),
        Verb(
            "hand_over",
            "job",
            "triage_unknown",
            (State.UNKNOWN,),
            level=1,
            params=given_as.assigning,
            needs=("to",),
            statement="assign",
        ),
        Verb(
            "snooze",
            "job",
            "triage_unknown",
            (State.UNKNOWN,),
            level=1,
            params=given_as.assigning,
            needs=("for_seconds",),
            statement="assign",
        ),
        Verb(
            CLONE,
            "job",
            "clone_job",
            tuple(state for state in State if state is not State.UNKNOWN),
            over_unknown_effects=False,
            level=3,
            params=given_as.cloning,
        ),
        Verb("purge", "job", "purge_job", FINAL, level=3),
        Verb("run_now", "job", "reschedule_job", WAITING, params=given_as.at_once, statement="reschedule"),
        Verb("reschedule", "job", "reschedule_job", WAITING, params=given_as.delaying, needs=("delay_seconds",)),
        Verb("reprioritise", "job", "reprioritise_job", WAITING, params=given_as.reprioritising, needs=("priority",)),
        Verb("move_queue", "job", "reprioritise_job", WAITING, params=given_as.moving, needs=("queue",)),
        Verb("pause_queue", "queue", "operate_queue", (ACTIVE,), params=given_as.pausing),
        Verb("resume_queue", "queue", "operate_queue", (PAUSED,)),
        Verb("skip_head", "job", "hold_job", (*WAITING, State.PAUSED, State.UNKNOWN)),
        Verb("drain_worker", "worker", "operate_worker", (ALIVE,)),
        Verb("forget_worker", "worker", "operate_worker", (SILENT,)),
        Verb("set_limit", "limit", "operate_limit", _TOGETHER, params=given_as.limiting),
        Verb("set_rate", "limit", "operate_limit", _TOGETHER, params=given_as.rating),
        Verb("set_weight", "limit", "operate_limit", _TOGETHER, params=given_as.weighing, limits=("tenant",)),
        Verb(APPROVE, "request", "approve_action", ("waiting",), level=3),
        Verb("decline", "request", "approve_action", ("waiting",), level=3),
        Verb("pause_jobs", "limit", "operate_limit", (ACTIVE,), params=given_as.pausing, limits=_NOT_QUEUES),
        Verb("resume_jobs", "limit", "operate_limit", (PAUSED,), limits=_NOT_QUEUES),
    )
}
"""Every verb by its name."""


def why_not(
    verb: Verb,
    state: str,
    *,
    unknown_effects: int = 0,
    stop_requested: bool = False,
    blocks_key: bool | None = None,
    stage: str = Stage.NOT_CALLED,
    recovery: str = Recovery.UNDECLARED,
    bounds: str | None = None,
    is_purged: bool = False,
    is_compensated: bool = False,
    compensation: str | None = None,
    leases: int = 0,
    words: Callable[[str], Any] = str,
) -> str | None:
    """Return in words why a verb is not offered on a target; None when it is.

    `compensation` is the name of the task that undoes its effects; `bounds` a limit's kind; `words` says what states
    are called.
    """
    if bounds is not None and bounds not in verb.limits:
        return _("Only tenants take turns.") if verb.name == "set_weight" else _("A queue is paused on its own page.")
    if state not in verb.states:
        facts = {"state": words(state), "states": ", ".join(str(words(each)) for each in verb.states)}
        return _("It is %(state)s; this applies to %(states)s.") % facts
    if leases and verb.name == "forget_worker":
        return ngettext(
            "It still holds %(number)d lease: other workers take its job over when that has run out.",
            "It still holds %(number)d leases: other workers take its jobs over when those have run out.",
            leases,
        ) % {"number": leases}
    if unknown_effects and not verb.over_unknown_effects:
        return ngettext(
            "The outcome of %(number)d effect is unknown: that must be reconciled first.",
            "The outcome of %(number)d effects is unknown: that must be reconciled first.",
            unknown_effects,
        ) % {"number": unknown_effects}
    if stop_requested and verb.name == "ask_to_stop":
        return _("It was asked to stop before, and has not answered yet.")
    if not blocks_key and verb.name == "skip_head":
        return _("No job waits for it: it has no shard key, or its task lets others of the key pass.")
    if why := _why_never_again(verb, stage, is_purged=is_purged, is_compensated=is_compensated):
        return why
    return _why_nothing_to_settle(verb, unknown_effects, compensation=compensation, recovery=recovery)


def _why_nothing_to_settle(verb: Verb, unknown_effects: int, *, compensation: str | None, recovery: str) -> str | None:
    if verb.name == COMPENSATE and compensation is None:
        return _("Its task declares no compensation: nothing knows how to undo what it did.")
    if verb.name == COMPENSATE and not unknown_effects:
        return _("No effect's outcome is unknown: there is nothing to compensate.")
    if verb.name == "give_up_unknown" and not unknown_effects:
        return _("No effect's outcome is unknown: it can be given up as any other job, and requeued.")
    if verb.name == "ask_again" and (recovery != Recovery.PROBE or not unknown_effects):
        return _("Nobody can be asked: its task has no probe, or none of its effects is unknown.")
    return None


def _why_never_again(verb: Verb, stage: str, *, is_purged: bool, is_compensated: bool) -> str | None:
    if verb.name in ("requeue", "clone") and stage == Stage.OUTCOME_UNKNOWN:
        return _("It was given up with an effect that may have happened: to run it again might do that twice.")
    if is_purged and verb.name in ("requeue", "clone", "purge"):
        return _("It was purged: its arguments are gone, and it cannot run again.")
    if is_compensated and verb.name == "requeue":
        return _("What it did was undone by another job: run again, it would go on as if that had not been.")
    return None


def bar(*, is_expired: bool, asked_by: tuple[str | None, str], by: tuple[str | None, str]) -> str | None:
    """Return what keeps somebody, an id and a name, from approving what another one asked for; None if nothing does."""
    if is_expired:
        return "expired"
    if by[0] is None:
        return "nameless"
    return "own" if by[0] == asked_by[0] or by[1].lower() == asked_by[1].lower() else None


def why_barred(barred: str) -> str:
    """Return in words what keeps somebody from approving a request."""
    match barred:
        case "expired":
            return _("It has expired: it must be asked for again.")
        case "nameless":
            return _("From a command line nobody can approve: nothing shows who it is. Approve it in the console.")
        case "own":
            return _("You asked for it yourself: somebody else has to approve it.")
    return _("What it is about has changed since: it can only be declined, and asked for again.")


def why_not_decided(verb: Verb, facts: Mapping[str, Any], id: str | None, name: str) -> str | None:
    """Return in words why a request was not approved or declined, from the facts of its locked row."""
    barred = bar(is_expired=facts["is_expired"], asked_by=(facts["asked_by_id"], facts["asked_by"]), by=(id, name))
    if barred is not None and verb.name == APPROVE and facts["state"] in verb.states:
        return why_barred(barred)
    return why_not(verb, facts["state"])


def why_stale(outcome: Outcome, why: str | None) -> str | None:
    """Return in words why what was asked for could not be done on its approval."""
    return why_barred("changed") if outcome in (Outcome.CHANGED, Outcome.GONE) else why


def why_refused(verb: Verb, facts: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """Return in words why a verb did nothing, from the facts of the locked row."""
    told = {name: facts[name] for name in _DECIDING if name in facts}
    refusal = why_not(verb, facts.get("state", ""), **told)
    if refusal is not None or verb.statement != "reconcile":
        return refusal
    unknown = [effect for effect in facts["effects"] if effect["stage"] == Stage.OUTCOME_UNKNOWN]
    named = next((effect for effect in unknown if effect["name"] == given.get("effect")), None)
    if named is None:
        names = ", ".join(effect["name"] for effect in unknown)
        if not names:
            return _("None of its effects is unknown: give no effect.")
        return _("The verdict must be about one effect whose outcome is unknown: %(names)s.") % {"names": names}
    if verb.name == "did_not_happen":
        seconds = {"seconds": math.ceil(named["deadline_seconds_left"])}
        return _("The call may still be under way: ask again in %(seconds)d seconds.") % seconds
    return ngettext(
        "The outcome of %(number)d other effect is unknown too.",
        "The outcome of %(number)d other effects is unknown too.",
        len(unknown) - 1,
    ) % {"number": len(unknown) - 1}
