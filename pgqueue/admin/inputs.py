"""What a verb's confirm page asks for besides the reason, and how that becomes the verb's params."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..bounds import is_name
from ..exceptions import LONGEST_NAME
from ..json_input import InputTooLargeError, read_json
from ..payloads import MAX_DEPTH
from ..verb_params import LARGEST_COUNT, LARGEST_PRIORITY, LARGEST_WEIGHT
from ..verbs import OVERRULE

LONGEST_MINUTES = 366 * 24 * 60
LARGEST_SPREAD_MINUTES = 24 * 60
LONGEST_TEXT = 2_000
LONGEST_JSON = 100_000


def _minutes(text: str) -> float:
    minutes = int(text)
    if not 1 <= minutes <= LONGEST_MINUTES:
        raise ValueError(_("Give whole minutes from 1 to %(longest)d.") % {"longest": LONGEST_MINUTES})
    return minutes * 60.0


def _whole(smallest: int, largest: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if not smallest <= number <= largest:
            told = _("Give a whole number from %(smallest)d to %(largest)d.")
            raise ValueError(told % {"smallest": smallest, "largest": largest})
        return number

    return read


def _rate(text: str) -> float:
    rate = float(text)
    if not 0 < rate <= LARGEST_COUNT:
        raise ValueError(_("Give a number greater than zero."))
    return rate


def _name(text: str) -> str:
    if not is_name(text):
        told = _("Give at most %(longest)d characters, without control characters.")
        raise ValueError(told % {"longest": LONGEST_NAME})
    return text


def _json(text: str) -> Any:
    try:
        return read_json(text)
    except InputTooLargeError:
        raise ValueError(_("This JSON is nested deeper than %(most)d levels.") % {"most": MAX_DEPTH}) from None
    except ValueError:
        raise ValueError(_("This is not JSON. A text stands in quotes.")) from None


def _json_of(kind: type, told: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        value = _json(text)
        if not isinstance(value, kind):
            raise ValueError(told)
        return value

    return read


@dataclass(frozen=True, slots=True)
class Input:
    """One field of a confirm page. `read` turns what was typed into the param, or says what is wrong with it."""

    name: str
    param: str
    label: Any
    required: bool = False
    kind: str = "text"
    """text, area: text of several lines, number, check: a box to tick, or effect: one whose outcome is unknown."""
    smallest: float = 1
    largest: float = LONGEST_MINUTES
    step: str = "1"
    """Of a number."""
    read: Callable[[str], Any] = str
    longest: int = LONGEST_TEXT


_EFFECT = Input("effect", "effect", gettext_lazy("Effect that the verdict is about"), kind="effect")
_EVIDENCE = Input("evidence", "evidence", gettext_lazy("Evidence: where you saw it"), required=True)
_OVERRULE = Input(
    OVERRULE,
    OVERRULE,
    gettext_lazy("I have read the late answer above, and overrule it"),
    kind="check",
    read=bool,
)
_HAPPENED = (
    _EFFECT,
    Input("remote_reference", "remote_reference", gettext_lazy("The other side's reference, as ch_123"), required=True),
    _EVIDENCE,
    Input("result", "result", gettext_lazy("Result for the code of the job, as JSON (optional)"), read=_json),
)

_PAUSE = (
    Input(
        "for_minutes",
        "for_seconds",
        gettext_lazy("Ends by itself after … minutes (empty: when resumed)"),
        kind="number",
        read=_minutes,
    ),
)

INPUTS: dict[str, tuple[Input, ...]] = {
    "pause_queue": _PAUSE,
    "pause_jobs": _PAUSE,
    "requeue": (
        Input(
            "delay_minutes",
            "delay_seconds",
            gettext_lazy("Start in … minutes (empty: now)"),
            kind="number",
            read=_minutes,
        ),
    ),
    "reschedule": (
        Input(
            "due_minutes",
            "delay_seconds",
            gettext_lazy("Due in … minutes"),
            required=True,
            kind="number",
            read=_minutes,
        ),
    ),
    "reprioritise": (
        Input(
            "priority",
            "priority",
            gettext_lazy("Priority, from -100 to 100; higher is taken first"),
            required=True,
            kind="number",
            read=_whole(-LARGEST_PRIORITY, LARGEST_PRIORITY),
            smallest=-LARGEST_PRIORITY,
            largest=LARGEST_PRIORITY,
        ),
    ),
    "move_queue": (Input("queue", "queue", gettext_lazy("Queue to move it to"), required=True, read=_name),),
    "set_limit": (
        Input(
            "max_running",
            "max_running",
            gettext_lazy("At most so many at once (empty: any number; 0: none)"),
            kind="number",
            read=_whole(0, LARGEST_COUNT),
            smallest=0,
            largest=LARGEST_COUNT,
        ),
    ),
    "set_rate": (
        Input(
            "rate_per_second",
            "rate_per_second",
            gettext_lazy("Starts per second (empty: any number)"),
            kind="number",
            read=_rate,
            smallest=0,
            largest=LARGEST_COUNT,
            step="any",
        ),
        Input(
            "burst",
            "burst",
            gettext_lazy("Most starts at once after a rest (empty: 1)"),
            kind="number",
            read=_whole(1, LARGEST_COUNT),
            largest=LARGEST_COUNT,
        ),
    ),
    "set_weight": (
        Input(
            "weight",
            "weight",
            gettext_lazy("Jobs in its turn, from 1 to 1000"),
            required=True,
            kind="number",
            read=_whole(1, LARGEST_WEIGHT),
            largest=LARGEST_WEIGHT,
        ),
    ),
    "clone": (
        Input(
            "new_args",
            "new_args",
            gettext_lazy("Other positional arguments, as a JSON list (both empty: the same as before)"),
            kind="area",
            read=_json_of(list, gettext_lazy("This is no JSON list: it stands in [ ].")),
            longest=LONGEST_JSON,
        ),
        Input(
            "new_kwargs",
            "new_kwargs",
            gettext_lazy("Other named arguments, as a JSON object"),
            kind="area",
            read=_json_of(dict, gettext_lazy("This is no JSON object: it stands in { }.")),
            longest=LONGEST_JSON,
        ),
    ),
    "happened": _HAPPENED,
    "happened_finish": _HAPPENED,
    "compensate": _HAPPENED[:-1],
    "did_not_happen": (_EFFECT, _EVIDENCE, _OVERRULE),
    "give_up_unknown": (_OVERRULE,),
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
        typed = posted.get(asked.name, "").replace("\0", "").strip()[: asked.longest]
        if not typed:
            if asked.required:
                problems[asked.name] = _("“%(field)s” is missing.") % {"field": asked.label}
            continue
        try:
            params[asked.param] = asked.read(typed)
        except ValueError as error:
            problems[asked.name] = _said(error)
    return params, problems


def _said(error: ValueError) -> str:
    """Return a reader's own words, or what to do about text that Python could not read as a number."""
    told = str(error)
    if "invalid literal" in told:
        return _("Give a whole number.")
    return _("Give a number.") if "could not convert" in told else told


def placeholders(verb: str) -> dict[str, Any]:
    """Return params for the record of an attempt that is refused whatever was asked."""
    return {
        each.param: each.read("1") if each.kind == "number" else "-" for each in INPUTS.get(verb, ()) if each.required
    }


def asks_for_effect(verb: str) -> bool:
    """Say whether a verb's page has to offer the effects in question."""
    return any(each.kind == "effect" for each in INPUTS.get(verb, ()))


def shown_inputs(
    verb: str,
    posted: Mapping[str, Any],
    effects: list[str],
    problems: Mapping[str, str],
    prefilled: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Return the fields as the page draws them, with what was typed, and what is wrong with it by the field's name.

    `prefilled` are values to begin with, from late answers. Without any, there is nothing to overrule.
    """
    return [
        {
            "name": each.name,
            "label": each.label,
            "required": each.required,
            "kind": each.kind,
            "value": posted.get(each.name, prefilled.get(each.name, "")),
            "longest": each.longest,
            "smallest": each.smallest,
            "largest": each.largest,
            "step": each.step,
            "choices": effects,
            "problem": problems.get(each.name, ""),
        }
        for each in INPUTS.get(verb, ())
        if (each.kind != "effect" or effects) and (each.kind != "check" or prefilled)
    ]
