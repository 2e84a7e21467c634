"""How long to wait after a failure. Pure."""

import datetime
import email.utils
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from .foreign import members, read

MAX_RETRY_AFTER_SECONDS = 7 * 86_400
LONGEST_NUMBER = 30


def delay_seconds(
    failure_number: int,
    *,
    base_seconds: float,
    cap_seconds: float,
    random: Callable[[], float] = random.random,
) -> float:
    """Return the wait after the `failure_number`-th failure in a row, the first being 1.

    The full delay is `base_seconds * 2 ** (failure_number - 1)`, at most `cap_seconds`; jitter takes a
    point between its half and the whole, so that what failed together does not come back together.
    `random` returns a number in [0, 1). Serves jobs and reconnects alike: any failure number is fine,
    however large.

    Raises ValueError where a number makes no sense, so that a wrong policy never looks like a long wait.
    """
    _refuse_nonsense(failure_number, base_seconds=base_seconds, cap_seconds=cap_seconds)
    full = _full_delay(failure_number - 1, base_seconds=base_seconds, cap_seconds=cap_seconds)
    return full * (0.5 + min(1.0, max(0.0, random())) / 2)


def is_told(failure_number: int) -> bool:
    """Return whether a failure in a row is worth a log line: the 1st, 2nd, 4th, 8th and so on."""
    return failure_number & (failure_number - 1) == 0


def _refuse_nonsense(failure_number: int, *, base_seconds: float, cap_seconds: float) -> None:
    if not isinstance(failure_number, int) or failure_number < 1:
        raise ValueError(f"failure_number must be a whole number from 1 up, not {failure_number!r}.")
    for name, seconds in (("base_seconds", base_seconds), ("cap_seconds", cap_seconds)):
        if not isinstance(seconds, int | float) or not 0 < seconds < math.inf:
            raise ValueError(f"{name} must be a finite number above 0, not {seconds!r}.")


def _full_delay(doublings: int, *, base_seconds: float, cap_seconds: float) -> float:
    """Double without overflow: the binary exponents are compared before anything is multiplied."""
    base_exponent = math.frexp(base_seconds)[1]
    cap_exponent = math.frexp(cap_seconds)[1]
    if base_exponent + doublings > cap_exponent:
        return float(cap_seconds)
    return min(float(cap_seconds), math.ldexp(base_seconds, doublings))


def retry_after_seconds(exc: BaseException) -> float | None:
    """Return how long the exception asks us to wait, 0 to MAX_RETRY_AFTER_SECONDS, or None; never raise.

    Read from `after_seconds`, `retry_after`, or a Retry-After header of `exc.response` or of `exc`
    itself. A date in that header is measured against the response's own Date, since this machine's
    clock may be wrong; without one, or where it cannot be read, it is ignored. In a group, the longest
    wait of its members counts.
    """
    waits = (_first_wait(member) for member in members(exc))
    return max((wait for wait in waits if wait is not None), default=None)


def _first_wait(exc: BaseException) -> float | None:
    try:
        return next((wait for wait in _waits(exc) if wait is not None), None)
    except BaseException:  # The value may be of a stranger's class too, and raise where it is compared.
        return None


def _waits(exc: BaseException) -> Iterator[float | None]:
    yield _bounded_seconds(read(exc, "after_seconds"))
    yield _bounded_seconds(read(exc, "retry_after"))
    for source in (read(exc, "response"), exc):
        headers = read(source, "headers")
        if headers is not None:
            told = _header(headers, "Retry-After")
            yield _bounded_seconds(told)
            yield _bounded_seconds(_seconds_between(_header(headers, "Date"), told))


def _header(headers: Any, name: str) -> Any:
    value = headers.get(name)
    return headers.get(name.lower()) if value is None else value


def _bounded_seconds(value: Any) -> float | None:
    seconds = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    if isinstance(seconds, str):
        seconds = _number(seconds)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    if isinstance(seconds, float) and math.isnan(seconds):
        return None
    return float(max(0, min(seconds, MAX_RETRY_AFTER_SECONDS)))


def _number(text: str) -> float | None:
    try:
        return float(text) if len(text) <= LONGEST_NUMBER else None
    except ValueError:
        return None


def _seconds_between(sent_at: Any, due_at: Any) -> float | None:
    if not isinstance(sent_at, str) or not isinstance(due_at, str):
        return None
    try:
        between = email.utils.parsedate_to_datetime(due_at) - email.utils.parsedate_to_datetime(sent_at)
    except (TypeError, ValueError, OverflowError, IndexError):
        return None
    return between.total_seconds()
