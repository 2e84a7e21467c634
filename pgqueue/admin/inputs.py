"""What a verb's confirm page asks for besides the reason, and how that becomes the verb's params."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

LONGEST_MINUTES = 366 * 24 * 60
LARGEST_SPREAD_MINUTES = 24 * 60


@dataclass(frozen=True, slots=True)
class Input:
    """One field of a confirm page: whole minutes that become seconds in the verb's params."""

    name: str
    param: str
    label: Any
    longest: int = LONGEST_MINUTES

    def read(self, text: str) -> float | None:
        """Return the seconds, None for an empty field. Raise `ValueError` for what is no such number."""
        if not text.strip():
            return None
        minutes = int(text)
        if not 1 <= minutes <= self.longest:
            raise ValueError(text)
        return minutes * 60.0


INPUTS: dict[str, tuple[Input, ...]] = {
    "pause_queue": (
        Input("for_minutes", "for_seconds", gettext_lazy("Ends by itself after … minutes (empty: when resumed)")),
    ),
    "requeue": (Input("delay_minutes", "delay_seconds", gettext_lazy("Start in … minutes (empty: now)")),),
}


def read_inputs(verb: str, posted: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a verb's params from a posted form, and what is wrong with them by the field's name."""
    params: dict[str, Any] = {}
    problems = {}
    for asked in INPUTS.get(verb, ()):
        try:
            value = asked.read(posted.get(asked.name, ""))
        except ValueError:
            facts = {"longest": asked.longest}
            problems[asked.name] = _("Give whole minutes from 1 to %(longest)d, or leave it empty.") % facts
            continue
        if value is not None:
            params[asked.param] = value
    return params, problems


def shown_inputs(verb: str, posted: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the fields as the page draws them, with what was typed."""
    return [
        {"name": each.name, "label": each.label, "value": posted.get(each.name, ""), "longest": each.longest}
        for each in INPUTS.get(verb, ())
    ]
