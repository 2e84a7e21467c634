"""What a verb's confirm page asks for besides the reason, and how that becomes the verb's params."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

LONGEST_MINUTES = 366 * 24 * 60
LARGEST_SPREAD_MINUTES = 24 * 60
LONGEST_TEXT = 2_000


def _minutes(text: str) -> float:
    minutes = int(text)
    if not 1 <= minutes <= LONGEST_MINUTES:
        raise ValueError(_("Give whole minutes from 1 to %(longest)d.") % {"longest": LONGEST_MINUTES})
    return minutes * 60.0


def _json(text: str) -> str:
    try:
        json.loads(text)
    except ValueError:
        raise ValueError(_("This is not JSON. A text stands in quotes.")) from None
    return text


@dataclass(frozen=True, slots=True)
class Input:
    """One field of a confirm page. `read` turns what was typed into the param, or says what is wrong with it."""

    name: str
    param: str
    label: Any
    required: bool = False
    kind: str = "text"
    """text, number, or effect: one of those whose outcome is unknown."""
    read: Callable[[str], Any] = str


_EFFECT = Input("effect", "effect", gettext_lazy("Effect that the verdict is about"), kind="effect")
_EVIDENCE = Input("evidence", "evidence", gettext_lazy("Evidence: where you saw it"), required=True)
_HAPPENED = (
    _EFFECT,
    Input("remote_reference", "remote_reference", gettext_lazy("Number that the other side gave it"), required=True),
    _EVIDENCE,
    Input("result", "result", gettext_lazy("Result for the code of the job, as JSON (optional)"), read=_json),
)

INPUTS: dict[str, tuple[Input, ...]] = {
    "pause_queue": (
        Input(
            "for_minutes",
            "for_seconds",
            gettext_lazy("Ends by itself after … minutes (empty: when resumed)"),
            kind="number",
            read=_minutes,
        ),
    ),
    "requeue": (
        Input(
            "delay_minutes",
            "delay_seconds",
            gettext_lazy("Start in … minutes (empty: now)"),
            kind="number",
            read=_minutes,
        ),
    ),
    "happened": _HAPPENED,
    "happened_finish": _HAPPENED,
    "did_not_happen": (_EFFECT, _EVIDENCE),
    "hand_over": (Input("to", "to", gettext_lazy("Who takes it"), required=True),),
    "snooze": (
        Input(
            "snooze_minutes", "for_seconds", gettext_lazy("For … minutes"), required=True, kind="number", read=_minutes
        ),
    ),
}


def read_inputs(verb: str, posted: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a verb's params from a posted form, and what is wrong with them by the field's name."""
    params: dict[str, Any] = {}
    problems = {}
    for asked in INPUTS.get(verb, ()):
        typed = posted.get(asked.name, "").replace("\0", "").strip()[:LONGEST_TEXT]
        if not typed:
            if asked.required:
                problems[asked.name] = _("“%(field)s” is missing.") % {"field": asked.label}
            continue
        try:
            params[asked.param] = asked.read(typed)
        except ValueError as error:
            said = str(error) if "invalid literal" not in str(error) else _("Give a whole number.")
            problems[asked.name] = said
    return params, problems


def placeholders(verb: str) -> dict[str, Any]:
    """Return params for the record of an attempt that is refused whatever was asked."""
    return {
        each.param: each.read("1") if each.kind == "number" else "-" for each in INPUTS.get(verb, ()) if each.required
    }


def asks_for_effect(verb: str) -> bool:
    """Say whether a verb's page has to offer the effects in question."""
    return any(each.kind == "effect" for each in INPUTS.get(verb, ()))


def shown_inputs(verb: str, posted: Mapping[str, Any], effects: list[str]) -> list[dict[str, Any]]:
    """Return the fields as the page draws them, with what was typed."""
    return [
        {
            "name": each.name,
            "label": each.label,
            "required": each.required,
            "kind": each.kind,
            "value": posted.get(each.name, ""),
            "longest": LONGEST_MINUTES if each.kind == "number" else LONGEST_TEXT,
            "choices": effects,
        }
        for each in INPUTS.get(verb, ())
        if each.kind != "effect" or effects
    ]
