"""The search box of jobs: qualifiers that an index answers. Free text would read the whole table, so there is none."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from ..json_input import read_json
from ..models import Effect, JobPayload, OperationKey
from ..states import WAITING, Lane, State

LARGEST_ID = 2**63 - 1
_UNITS = {"m": 60, "h": 3600, "d": 86_400}
LONGEST_AGE_SECONDS = 3660 * 86_400
LONGEST_SEARCH = 2_000
MOST_TERMS = 20
DEEPEST_PATH = 20
"""Names in the path of an argument, as in args.card.kind."""


def job_id(text: str) -> int | None:
    """Return the number in a text; None when no job can have it."""
    digits = re.fullmatch(r"\s*#?([0-9]{1,19})\s*", text)
    number = int(digits[1]) if digits else None
    return number if number is not None and number <= LARGEST_ID else None


@dataclass(frozen=True, slots=True)
class Search:
    """What a search box was understood to ask for. With a problem it finds nothing rather than everything."""

    condition: Q
    problems: tuple[str, ...]
    names: frozenset[str]


def understand(text: str, *, alias: str, may_see_args: bool) -> Search:
    """Read the search box: `name:value` terms and job numbers, joined by AND."""
    condition, problems, names = Q(), [], set()
    try:
        terms = _terms(text)
    except ValueError as error:
        return Search(condition, (str(error),), frozenset())
    for term in terms:
        name, colon, value = term.partition(":")
        if not colon:
            name, value = "id", term
            if job_id(term) is None:
                problems.append(_("“%(term)s”: free text is not searched.") % {"term": term})
                continue
        found = _condition(name, value, alias, may_see_args)
        if isinstance(found, str):
            problems.append(found)
        else:
            condition &= found
            names.add(name.partition(".")[0])
    return Search(condition, tuple(problems), frozenset(names))


def _terms(text: str) -> list[str]:
    if len(text) > LONGEST_SEARCH:
        raise ValueError(_("The search is longer than %(longest)d characters.") % {"longest": LONGEST_SEARCH})
    try:
        terms = shlex.split(text.replace("\0", ""), posix=True)
    except ValueError:
        raise ValueError(_("A quote is not closed.")) from None
    if len(terms) > MOST_TERMS:
        raise ValueError(_("The search has more than %(most)d terms.") % {"most": MOST_TERMS})
    return terms


def _condition(name: str, value: str, alias: str, may_see_args: bool) -> Q | str:
    """Return the condition of one term, or what is wrong with it."""
    if not value:
        return _("“%(name)s:” has no value.") % {"name": name}
    if name.startswith("args."):
        if not may_see_args:
            return _("Searching arguments needs the permission pgqueue.view_job_args.")
        if name.count(".") > DEEPEST_PATH:
            return _("The path of the argument has more than %(most)d names.") % {"most": DEEPEST_PATH}
        return Q(pk__in=_with_argument(alias, name.removeprefix("args."), value))
    if name not in TERMS:
        known = " ".join(f"{each}:" for each in (*TERMS, "args.NAME"))
        return _("“%(name)s:” is not searched; these are: %(known)s") % {"name": name, "known": known}
    found = TERMS[name](alias, value)
    return _("“%(value)s” is no value of %(name)s:") % {"value": value, "name": name} if found is None else found


def _by_id(alias: str, value: str) -> Q | None:
    number = job_id(value)
    return None if number is None else Q(pk=number)


def in_state(state: str) -> Q:
    """Return the condition of a state; waiting jobs are found by their lanes, as their indexes are by lane."""
    if state not in WAITING:
        return Q(state=state)
    return Q(state=state) & (
        Q(lane__in=[Lane.PLAIN, Lane.ALONE, Lane.ISOLATED]) | Q(lane=Lane.LANED, priority__gte=-100)
    )


def _by_state(alias: str, value: str) -> Q | None:
    return in_state(value) if value in list(State) else None


def _by_key(alias: str, value: str) -> Q:
    """A job without a key of its own has its number for one."""
    own = _by_id(alias, value.removeprefix("job:")) if value.startswith("job:") else None
    keyed = OperationKey.objects.using(alias).filter(key=value).values("job_id")
    return Q(pk__in=keyed) if own is None else own & Q(operation_key=None) | Q(pk__in=keyed)


def _by_error(alias: str, value: str) -> Q:
    """A class is named with its module, or without."""
    return Q(last_error_class=value) if "." in value else Q(last_error_class__endswith=f".{value}")


def _by_worker(alias: str, value: str) -> Q | None:
    number = job_id(value.removeprefix("-"))
    if number is None:
        return None
    # Nobody else holds a job than who runs it, and the index is of running jobs.
    return Q(worker_id=-number if value.startswith("-") else number, state=State.RUNNING)


def _by_reference(alias: str, value: str) -> Q:
    return Q(pk__in=Effect.objects.using(alias).filter(remote_reference=value).values("job_id"))


def _by_age(alias: str, value: str) -> Q | None:
    """Jobs that ended within a time: `1h`, `24h`, `7d`."""
    read = re.fullmatch(r"([0-9]{1,6})([mhd])", value)
    seconds = int(read[1]) * _UNITS[read[2]] if read else 0
    return Q(finished_at__gte=Now() - timedelta(seconds=seconds)) if 0 < seconds <= LONGEST_AGE_SECONDS else None


def _with_argument(alias: str, path: str, value: str) -> Any:
    """Return the ids of jobs with a keyword argument; a value that reads as JSON is also looked for as that."""
    asked = Q()
    for each in _readings(value):
        nested: Any = each
        for name in reversed(path.split(".")):
            nested = {name: nested}
        asked |= Q(kwargs__contains=nested)
    return JobPayload.objects.using(alias).filter(asked).values("job_id")


def _readings(value: str) -> list[Any]:
    try:
        read = read_json(value)
    except ValueError:
        return [value]
    return [value, read] if isinstance(read, int | float | bool) and abs(read) < 2**63 else [value]


TERMS: dict[str, Callable[[str, str], Q | None]] = {
    "id": _by_id,
    "key": _by_key,
    "task": lambda alias, value: Q(task=value),
    "queue": lambda alias, value: Q(queue=value),
    "state": _by_state,
    "error": _by_error,
    "worker": _by_worker,
    "tenant": lambda alias, value: Q(tenant=value),
    "op": _by_reference,
    "ended": _by_age,
    "due": lambda alias, value: {"now": Q(run_at__lte=Now()), "later": Q(run_at__gt=Now())}.get(value),
}
"""Condition by the name of a term; None for a value that no job can have."""
