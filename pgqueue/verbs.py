"""The operator's verbs: on what they act, in which states, with which permission, and why one does not apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .recovery import Facts, decide_break
from .states import WAITING, State

ACTIVE, PAUSED = "active", "paused"
"""States of a queue, and of a row of limits."""
LARGEST_COUNT = 2**31 - 1
LARGEST_WEIGHT = 1_000

LONGEST_PAUSE_SECONDS = 10 * 366 * 86_400.0


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
    """2 needs a reason; 3 also the target's number typed by hand, where a person clicks."""
    params: Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]] = lambda facts, given: {}
    """Statement parameters from the locked row's facts and the caller's params."""


def _break_params(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    target = decide_break(
        Facts(
            recovery=facts["recovery"],
            unknown_effects=facts["unknown_effects"],
            stop_requested=facts["stop_requested"],
            exhausted=False,
        )
    )
    message = f"An operator broke the lease of worker {facts['worker_id']} under fence {facts['fence']}."
    return {
        "target": str(target),
        "message": message,
        "fence": facts["fence"],
        "stage": facts["stage"],
        "worker_id": facts["worker_id"],
    }


def _pause_params(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    seconds = given.get("for_seconds")
    # A pause that ends before it begins would be answered `applied` and stop nothing.
    if seconds is not None and not 0 < seconds <= LONGEST_PAUSE_SECONDS:
        raise ValueError(f"for_seconds is {seconds!r}: give a time greater than zero, or none for no end.")
    return {"for_seconds": seconds}


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
"""Every verb by its name, which is also its statement's."""


def why_not(
    verb: Verb,
    state: str,
    *,
    unknown_effects: int = 0,
    stop_requested: bool = False,
    blocks_key: bool | None = None,
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
    return None
