"""What a verdict on one effect makes of its job. Pure; for operators and probes alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .json_input import MAX_CHARACTERS
from .payloads import encode_result
from .states import Stage, State, worst

Effects = Sequence[Mapping[str, Any]]


def verdict(
    effects: Effects, name: str | None, *, stage: Stage, target: State, probe_next: bool = False
) -> dict[str, Any]:
    """Return what `reconcile.sql` writes when effect `name` is said to stand at `stage`.

    `effects` are those of the job, as read under its lock. The job goes to `target` when nothing is unknown any more;
    else it stays, and `probe_next` has the remote system asked about the next one.
    """
    after = [{**effect, "stage": stage} if effect["name"] == name else effect for effect in effects]
    unknown = [effect for effect in after if effect["stage"] == Stage.OUTCOME_UNKNOWN]
    return {
        "effect": name,
        "effect_stage": str(stage),
        "stage": str(worst(effect["stage"] for effect in after)),
        "unknown_effects": len(unknown),
        "replay_until": min((effect["replay_until"] for effect in unknown if effect["replay_until"]), default=None),
        "target": str(State.UNKNOWN if unknown and target is State.RETRYING else target),
        "probe": probe_next,
        "remote_reference": None,
        "result": None,
        "evidence": None,
        "compensated": False,
    }


def given_up(effects: Effects) -> dict[str, Any]:
    """Return what `reconcile.sql` writes when nobody can tell: the effects keep their stage, for ever."""
    written = verdict(effects, None, stage=Stage.OUTCOME_UNKNOWN, target=State.DEAD)
    return {**written, "unknown_effects": 0, "replay_until": None}


def as_json(value: Any) -> str | None:
    """Return a result as JSON text, None for None. Raise `ResultError` for one that jsonb cannot hold."""
    return encode_result(value, max_bytes=MAX_CHARACTERS)
