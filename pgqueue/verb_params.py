"""What a verb's statement is given: from the facts of the locked row, and from what the operator said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .recovery import Facts, asks_probe, decide_break
from .states import Stage, State
from .verdicts import as_json, given_up, verdict

LARGEST_COUNT = 2**31 - 1
LARGEST_WEIGHT = 1_000
LARGEST_PRIORITY = 100
"""From minus this to this; higher is earlier."""
LONGEST_PAUSE_SECONDS = 10 * 366 * 86_400.0

Params = Callable[[Mapping[str, Any], Mapping[str, Any]], dict[str, Any]]


def breaking(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
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


def pausing(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"for_seconds": given.get("for_seconds")}


def happened(target: State) -> Params:
    def params(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **verdict(facts["effects"], given.get("effect"), stage=Stage.RESULT_KNOWN, target=target),
            "fence": facts["fence"],
            "remote_reference": given["remote_reference"],
            "result": as_json(given.get("result")),
            "evidence": given["evidence"],
        }

    return params


def compensating(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {**happened(State.DEAD)(facts, given), "compensated": True}


def cloning(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """What the new arguments are is no param: it is written, and not on record."""
    return {"is_anew": "arguments" in given, "args": None, "kwargs": None}


def did_not_happen(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **verdict(facts["effects"], given.get("effect"), stage=Stage.NOT_CALLED, target=State.RETRYING),
        "fence": facts["fence"],
        "evidence": given["evidence"],
    }


def giving_up_unknown(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {**given_up(facts["effects"]), "fence": facts["fence"]}


def taking(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"taken_by": facts["actor_name"], "for_seconds": None}


def assigning(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"taken_by": given.get("to"), "for_seconds": given.get("for_seconds")}


def delaying(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    seconds = given.get("delay_seconds", 0.0)
    if not 0 <= seconds <= LONGEST_PAUSE_SECONDS:
        raise ValueError(f"delay_seconds is {seconds!r}: give the seconds from now on, or none to start at once.")
    return {"delay_seconds": float(seconds)}


def at_once(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"delay_seconds": 0.0}


def reprioritising(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"priority": _whole(given, "priority", smallest=-LARGEST_PRIORITY, largest=LARGEST_PRIORITY)}


def moving(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"queue": given["queue"]}


def limiting(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"max_running": _whole(given, "max_running", smallest=0)}


def rating(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    rate = given.get("rate_per_second")
    if rate is None:
        return {"rate_per_second": None, "burst": None}
    if not 0 < rate <= LARGEST_COUNT:
        raise ValueError(f"rate_per_second is {rate!r}: give a number greater than zero, or none for no bound.")
    return {"rate_per_second": rate, "burst": _whole({"burst": 1, **given}, "burst", smallest=1)}


def weighing(facts: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {"weight": _whole({"weight": 1, **given}, "weight", smallest=1, largest=LARGEST_WEIGHT)}


def _whole(given: Mapping[str, Any], name: str, *, smallest: int, largest: int = LARGEST_COUNT) -> int | None:
    value = given.get(name)
    if value is None and name == "max_running":
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        raise ValueError(f"{name} is {value!r}: give a whole number from {smallest} to {largest}.")
    return value
