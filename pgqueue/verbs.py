"""The operator's verbs: on what they act, in which states, with which permission, and why one does not apply."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import verb_params as given_as
from .bounds import NAME, is_name
from .refusals import VerbParamsError
from .states import FINAL, LIMIT_KINDS, WAITING, State
from .verb_params import LONGEST_PAUSE_SECONDS, Params

ACTIVE, PAUSED = "active", "paused"
"""States of a queue, and of a row of limits."""
APPROVE, CLONE, COMPENSATE = "approve", "clone", "compensate"
ALIVE, DRAINING, SILENT, STOPPED = "alive", "draining", "silent", "stopped"
"""States of a worker: a silent one has not been heard for a whole lease."""
OVERRULING = ("did_not_happen", "give_up_unknown")
"""Verdicts that a late answer of a lost worker speaks against."""
OVERRULE = "against_evidence"
"""Param that says that a late answer was read, and is overruled."""
PRIVATE_PARAMS = ("result",)
"""Params that hold what an effect answered: they are shown to whoever may see arguments and results."""
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
        if "queue" in given and not is_name(given["queue"]):
            raise VerbParamsError(self.name, "queue", f"is no name: give {NAME}")
        seconds = given.get("for_seconds")
        # A pause that ends before it begins would be answered `applied` and stop nothing.
        if seconds is not None and not 0 < seconds <= LONGEST_PAUSE_SECONDS:
            raise VerbParamsError(self.name, "for_seconds", f"is {seconds!r}: give a time greater than zero, or none")


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
