"""Why a verb is not offered, or did nothing: in words, from the facts of its target. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .states import Outcome, Recovery, Stage
from .verbs import APPROVE, COMPENSATE, OVERRULE, OVERRULING, Verb

_DECIDING = (
    *("unknown_effects", "stop_requested", "stage", "recovery"),
    *("is_purged", "is_compensated", "compensation", "leases"),
)
"""Facts of a target that decide beside its state."""


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


def why_against_evidence(verb: Verb, facts: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """Return in words which late answer speaks against a verdict; None when none does, or it is overruled.

    A late answer is what a lost worker heard of a call after its lease was over: the call came back.
    """
    if verb.name not in OVERRULING or given.get(OVERRULE) is True:
        return None
    unknown = {effect["name"] for effect in facts.get("effects", ()) if effect["stage"] == Stage.OUTCOME_UNKNOWN}
    asked = unknown & {given.get("effect")} if verb.name == "did_not_happen" else unknown
    answer = next((answer for answer in facts.get("late_answers", ()) if answer["effect"] in asked), None)
    if answer is None:
        return None
    told = _(
        "Worker %(worker)s got an answer from %(effect)s after it had lost the job, at %(at)s: %(reference)s. The call "
        "has probably happened. To overrule that answer, confirm that you have read it."
    )
    reference = answer["remote_reference"] or _("without a reference")
    return told % {
        "worker": answer["worker_id"],
        "effect": answer["effect"],
        "at": answer["at"],
        "reference": reference,
    }


MOST_ATTEMPTS = 32_767
"""What the column holds."""


def why_refused(verb: Verb, facts: Mapping[str, Any], given: Mapping[str, Any]) -> str | None:
    """Return in words why a verb did nothing, from the facts of the locked row."""
    told = {name: facts[name] for name in _DECIDING if name in facts}
    refusal = why_not(verb, facts.get("state", ""), **told) or why_against_evidence(verb, facts, given)
    if refusal is None and verb.name == "requeue" and facts.get("attempts", 0) >= MOST_ATTEMPTS:
        return _("It was tried %(most)s times, and more cannot be counted: run it again as a new job.") % {
            "most": str(MOST_ATTEMPTS)
        }
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
