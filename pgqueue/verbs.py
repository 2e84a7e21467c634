"""The operator's verbs: on what they act, in which states, with which permission, and why one does not apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .recovery import Facts, asks_probe, decide_break
from .refusals import VerbParamsError
from .states import FINAL, WAITING, Recovery, Stage, State
from .verdicts import as_json, given_up, verdict

ACTIVE, PAUSED = "active", "paused"
"""States of a queue, and of a row of limits."""
LARGEST_COUNT = 2**31 - 1
LARGEST_WEIGHT = 1_000

LONGEST_PAUSE_SECONDS = 10 * 366 * 86_400.0

Params = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]


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
    """Params that must be given, each a text but `for_seconds`."""
    statement: str = ""
    """Its statement, where that is not of its name."""

    def check(self, given: Mapping[str, Any]) -> None:
        """Raise `VerbParamsError` for params that cannot be used, before anything is looked at."""
        for name in self.needs:
            if name == "for_seconds" and isinstance(given.get(name), int | float):
                continue
            if not (isinstance(given.get(name), str) and given[name].strip()):
                raise VerbParamsError(self.name, name, "is missing: give one that says something")
        seconds = given.get("for_seconds")
        # A pause that ends before it begins would be answered `applied` and stop nothing.
        if seconds is not None and not 0 < seconds <= LONGEST_PAUSE_SECONDS:
            raise VerbParamsError(self.name, "for_seconds", f"is {seconds!r}: give a time greater than zero, or none")


def _break_params(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    seen = Facts(
        recovery=facts["recovery"],
        unknown_effects=facts["unknown_effects"],
        stop_requested=facts["stop_requested"],
        exhausted=False,
        replay_safe=facts["replay_safe"],
    )
    message = f"An operator broke the lease of worker {facts['worker_id']} under fence {facts['fence']}."
    return {
        "target": str(decide_break(seen)),
        "probe": asks_probe(seen),
        "message": message,
        "fence": facts["fence"],
        "stage": facts["stage"],
        "worker_id": facts["worker_id"],
    }


def _pause_params(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"for_seconds": given.get("for_seconds")}


def _happened(target: State) -> Params:
    def params(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **verdict(facts["effects"], given.get("effect"), stage=Stage.RESULT_KNOWN, target=target),
            "fence": facts["fence"],
            "remote_reference": given["remote_reference"],
            "result": as_json(given.get("result")),
            "evidence": given["evidence"],
        }

    return params


def _did_not_happen(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **verdict(facts["effects"], given.get("effect"), stage=Stage.NOT_CALLED, target=State.RETRYING),
        "fence": facts["fence"],
        "evidence": given["evidence"],
    }


def _give_up_unknown(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {**given_up(facts["effects"]), "fence": facts["fence"]}


def _taking(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"taken_by": facts["actor_name"], "for_seconds": None}


def _assignment(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"taken_by": given.get("to"), "for_seconds": given.get("for_seconds")}


def _requeue_params(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    seconds = given.get("delay_seconds", 0.0)
    if not 0 <= seconds <= LONGEST_PAUSE_SECONDS:
        raise ValueError(f"delay_seconds is {seconds!r}: give the seconds from now on, or none to start at once.")
    return {"delay_seconds": float(seconds)}


def _limit_params(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"max_running": _whole(given, "max_running", smallest=0)}


def _rate_params(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    rate = given.get("rate_per_second")
    if rate is None:
        return {"rate_per_second": None, "burst": None}
    if not 0 < rate <= LARGEST_COUNT:
        raise ValueError(f"rate_per_second is {rate!r}: give a number greater than zero, or none for no bound.")
    return {"rate_per_second": rate, "burst": _whole({"burst": 1, **given}, "burst", smallest=1)}


def _weight_params(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"weight": _whole({"weight": 1, **given}, "weight", smallest=1, largest=LARGEST_WEIGHT)}


def _whole(given: Mapping[str, Any], name: str, *, smallest: int, largest: int = LARGEST_COUNT) -> int | None:
    value = given.get(name)
    if value is None and name == "max_running":
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        raise ValueError(f"{name} is {value!r}: give a whole number from {smallest} to {largest}.")
    return value


_TOGETHER = (ACTIVE, PAUSED)
VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb("requeue", "job", "requeue_job", (State.DEAD, State.CANCELLED), params=_requeue_params),
        Verb("cancel", "job", "cancel_job", (*WAITING, State.PAUSED), over_unknown_effects=False),
        Verb("hold", "job", "hold_job", WAITING),
        Verb("unhold", "job", "hold_job", (State.PAUSED,)),
        Verb("give_up", "job", "discard_job", (*WAITING, State.UNKNOWN), over_unknown_effects=False),
        Verb("ask_to_stop", "job", "cancel_job", (State.RUNNING,)),
        Verb("break_lease", "job", "break_lease", (State.RUNNING,), level=3, params=_break_params),
        Verb(
            "happened",
            "job",
            "resolve_unknown",
            (State.UNKNOWN,),
            level=3,
            params=_happened(State.RETRYING),
            needs=("remote_reference", "evidence"),
            statement="reconcile",
        ),
        Verb(
            "happened_finish",
            "job",
            "resolve_unknown",
            (State.UNKNOWN,),
            level=3,
            params=_happened(State.SUCCEEDED),
            needs=("remote_reference", "evidence"),
            statement="reconcile",
        ),
        Verb(
            "did_not_happen",
            "job",
            "resolve_unknown",
            (State.UNKNOWN,),
            level=3,
            params=_did_not_happen,
            needs=("evidence",),
            statement="reconcile",
        ),
        Verb(
            "give_up_unknown",
            "job",
            "resolve_unknown",
            (State.UNKNOWN,),
            level=3,
            params=_give_up_unknown,
            statement="reconcile",
        ),
        Verb("ask_again", "job", "triage_unknown", (State.UNKNOWN,), level=1),
        Verb("take", "job", "triage_unknown", (State.UNKNOWN,), level=1, params=_taking, statement="assign"),
        Verb(
            "hand_over",
            "job",
            "triage_unknown",
            (State.UNKNOWN,),
            level=1,
            params=_assignment,
            needs=("to",),
            statement="assign",
        ),
        Verb(
            "snooze",
            "job",
            "triage_unknown",
            (State.UNKNOWN,),
            level=1,
            params=_assignment,
            needs=("for_seconds",),
            statement="assign",
        ),
        Verb("clone", "job", "clone_job", FINAL, level=3),
        Verb("pause_queue", "queue", "operate_queue", (ACTIVE,), params=_pause_params),
        Verb("resume_queue", "queue", "operate_queue", (PAUSED,)),
        Verb("skip_head", "job", "hold_job", (*WAITING, State.PAUSED, State.UNKNOWN)),
        Verb("set_limit", "limit", "operate_limit", _TOGETHER, params=_limit_params),
        Verb("set_rate", "limit", "operate_limit", _TOGETHER, params=_rate_params),
        Verb("set_weight", "limit", "operate_limit", _TOGETHER, params=_weight_params),
        Verb("pause_jobs", "limit", "operate_limit", (ACTIVE,), params=_pause_params),
        Verb("resume_jobs", "limit", "operate_limit", (PAUSED,)),
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
    words: Callable[[str], Any] = str,
) -> str | None:
    """Return in words why a verb is not offered on a target; None when it is. `words` says what states are called."""
    if state not in verb.states:
        facts = {"state": words(state), "states": ", ".join(str(words(each)) for each in verb.states)}
        return _("It is %(state)s; this applies to %(states)s.") % facts
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
    if verb.name in ("requeue", "clone") and stage == Stage.OUTCOME_UNKNOWN:
        return _("It was given up with an effect that may have happened: to run it again might do that twice.")
    if verb.name == "give_up_unknown" and not unknown_effects:
        return _("No effect's outcome is unknown: it can be given up as any other job, and requeued.")
    if verb.name == "ask_again" and (recovery != Recovery.PROBE or not unknown_effects):
        return _("Nobody can be asked: its task has no probe, or none of its effects is unknown.")
    return None


def why_refused(verb: Verb, facts: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """Return in words why a verb did nothing, from the facts of the locked row."""
    told = {name: facts[name] for name in ("unknown_effects", "stop_requested", "stage", "recovery") if name in facts}
    refusal = why_not(verb, facts.get("state", ""), **told)
    if refusal is not None or verb.statement != "reconcile":
        return refusal
    unknown = [effect for effect in facts["effects"] if effect["stage"] == Stage.OUTCOME_UNKNOWN]
    named = next((effect for effect in unknown if effect["name"] == given.get("effect")), None)
    if named is None:
        names = ", ".join(effect["name"] for effect in unknown) or "none: give no effect"
        return f"The verdict must be about one effect whose outcome is unknown ({names})."
    if verb.name == "did_not_happen":
        return f"The call may still be under way: ask again in {named['deadline_seconds_left']:.0f} seconds."
    return f"The outcome of {len(unknown) - 1} other effect(s) is unknown too."
