"""Arguments and results as JSON text that PostgreSQL's jsonb gives back as the same value. Pure.

What is accepted, and what it comes back as:

| given                         | comes back as |
|-------------------------------|---------------|
| None, bool                    | itself |
| str, SafeString, a str enum   | str; without NUL and lone surrogates, which jsonb cannot hold |
| int, an int enum              | int; at most MAX_INT_DIGITS digits (Python reads 4,300, jsonb far more) |
| float                         | float; finite; -0.0 comes back as 0.0, as jsonb has no negative zero |
| list, tuple, named tuple      | list |
| dict with str keys            | dict; the order of the keys may change |

Everything else is refused, with the argument's path and what to pass instead. One pass checks and spells:
the check needs the walk anyway, and the standard encoder would let large floats come back as ints (jsonb
prints 1e16 without a fraction).
"""

import datetime
import decimal
import enum
import hashlib
import json
import math
import pathlib
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from .exceptions import PayloadError, PayloadTooLargeError, PayloadTypeError, ResultError

MAX_DEPTH = 100
MAX_INT_DIGITS = 4_000
LONGEST_KEY_SHOWN = 40
LONGEST_PATH_SHOWN = 200

# No setting of Python's own limit on digits goes below 640, so an int under this needs no closer look.
SURELY_SHORT_INT = 10**600

OPTIONS_OF_USING = frozenset(
    {"run_after", "priority", "queue_name", "backend", "tenant", "shard_key", "operation_key", "max_attempts"}
)

# A place is the root's name, or a pair (place of the container, index or key).
Place = Any

_quote = json.JSONEncoder(ensure_ascii=False).encode
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def encode_arguments(
    args: Sequence[Any], kwargs: Mapping[str, Any], *, max_bytes: int
) -> tuple[str | None, str | None]:
    """Return the JSON texts of (args, kwargs), None for an empty one.

    `max_bytes` limits both texts together, in UTF-8. Raises PayloadTypeError for a type JSON does not have,
    PayloadError for a value that would not come back, PayloadTooLargeError.
    """
    speller = _Speller(max_bytes)
    args_text = speller.spell_list(args, "args", 0) if args else None
    kwargs_text = speller.spell_dict(kwargs, "kwargs", 0) if kwargs else None
    _refuse_too_large(_size(args_text) + _size(kwargs_text), max_bytes)
    return args_text, kwargs_text


def encode_result(value: Any, *, max_bytes: int) -> str | None:
    """Return the JSON text of a return value, None for None. Raise ResultError if it cannot be stored."""
    if value is None:
        return None
    try:
        return _encode_value(value, "result", max_bytes)
    except PayloadTooLargeError as error:
        reason = f"takes at least {error.size_bytes:,} bytes of JSON, the limit is {error.limit_bytes:,}"
        raise ResultError("result", reason, "store the data elsewhere and return its key") from None
    except PayloadError as error:
        raise ResultError(error.path, error.reason, error.advice.replace("pass ", "return ", 1)) from None


def decode(stored: str | bytes | list[Any] | dict[str, Any] | None) -> Any:
    """Return the value of stored JSON, whether the driver parsed it or not.

    A str is always JSON text: a result, which may itself be a str, must be read unparsed.
    """
    return json.loads(stored) if isinstance(stored, str | bytes) else stored


def digest(args_text: str | None, kwargs_text: str | None) -> str:
    """Return the SHA-256, in hex, of the arguments that two texts of `encode_arguments` mean.

    Equal for texts that jsonb calls equal, and for a text and its jsonb spelling: key order, blanks and 1 or
    1.0 do not matter; 1 and true differ.
    """
    parsed = [_parse_canonically(args_text or "[]"), _parse_canonically(kwargs_text or "{}")]
    return hashlib.sha256(_canonical(parsed).encode()).hexdigest()


def _parse_canonically(text: str) -> Any:
    return json.loads(text, parse_float=_whole_or_float)


def _whole_or_float(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() else number


def _encode_value(value: Any, root: str, max_bytes: int) -> str:
    text = _Speller(max_bytes).spell(value, root, 0)
    _refuse_too_large(_size(text), max_bytes)
    return text


def _refuse_too_large(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise PayloadTooLargeError(size_bytes, max_bytes)


def _size(text: str | None) -> int:
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode())


class _Speller:
    """Spells values as JSON, or refuses them.

    `size` counts one for every value and one for every character of a string, so never more than the text
    will have. It stops lists that share their items, small in memory but endless as text.
    """

    __slots__ = ("limit", "size")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0

    def spell(self, value: Any, place: Place, depth: int) -> str:
        kind = type(value)
        spell = _SPELLINGS.get(kind)
        if spell is None:
            # By type: isinstance() would ask `__class__`, which loads a lazy object from the database.
            spell = _SPELLINGS[_plain_type(kind, place)]
        self.count(1)
        return spell(self, value, place, depth)

    def count(self, characters: int) -> None:
        self.size += characters
        if self.size > self.limit:
            raise PayloadTooLargeError(self.size, self.limit)

    def spell_str(self, value: str, place: Place, depth: int) -> str:
        self.count(len(value))
        _refuse_unstorable_text(value, place)
        return _quote(value)

    def spell_int(self, value: int, place: Place, depth: int) -> str:
        if not -SURELY_SHORT_INT < value < SURELY_SHORT_INT:
            _refuse_long_int(value, place)
        return int.__repr__(value)

    def spell_float(self, value: float, place: Place, depth: int) -> str:
        if not math.isfinite(value):
            _refuse(place, "is not a finite number", "pass None or a str")
        text = float.__repr__(value)
        return text if "e+" not in text else format(float(value), ".1f")

    def spell_bool(self, value: bool, place: Place, depth: int) -> str:
        return "true" if value else "false"

    def spell_none(self, value: None, place: Place, depth: int) -> str:
        return "null"

    def spell_list(self, value: Sequence[Any], place: Place, depth: int) -> str:
        _refuse_depth(depth, place)
        spell, depth = self.spell, depth + 1
        return f"[{', '.join([spell(item, (place, index), depth) for index, item in enumerate(value)])}]"

    def spell_dict(self, value: Mapping[str, Any], place: Place, depth: int) -> str:
        _refuse_depth(depth, place)
        return f"{{{', '.join([self.spell_pair(*pair, place, depth + 1) for pair in value.items()])}}}"

    def spell_pair(self, key: Any, item: Any, place: Place, depth: int) -> str:
        return f"{self.spell_key(key, place)}: {self.spell(item, (place, key), depth)}"

    def spell_key(self, key: Any, place: Place) -> str:
        if not issubclass(type(key), str):
            reason = f"has a key of type {type(key).__name__}, and JSON has only str keys"
            _refuse(place, reason, "pass {str(key): value, ...}", PayloadTypeError)
        return self.spell_str(key, (place, key), 0)


_SPELLINGS: dict[type, Callable[[_Speller, Any, Place, int], str]] = {
    str: _Speller.spell_str,
    int: _Speller.spell_int,
    float: _Speller.spell_float,
    bool: _Speller.spell_bool,
    type(None): _Speller.spell_none,
    list: _Speller.spell_list,
    tuple: _Speller.spell_list,
    dict: _Speller.spell_dict,
}


def _plain_type(kind: type, place: Place) -> type:
    """Return the plain type that a subclass is spelled as, or refuse it."""
    plain = next((base for base in kind.__mro__ if base in _SPELLINGS), None)
    is_other_enum = issubclass(kind, enum.Enum) and plain not in (str, int)
    is_multi_dict = plain is dict and hasattr(kind, "getlist")
    if plain is None or is_other_enum or is_multi_dict:
        reason = f"is of type {kind.__name__}, which would not come back from JSON"
        _refuse(place, reason, _advice(kind), PayloadTypeError)
    return plain


def _refuse_unstorable_text(text: str, place: Place) -> None:
    if "\0" in text:
        _refuse(place, "holds a NUL character, which PostgreSQL cannot store", "pass it without that")
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        _refuse(place, "holds half of a surrogate pair", "pass base64, or decode with errors='replace'")


def _refuse_long_int(value: int, place: Place) -> None:
    digits = min(MAX_INT_DIGITS, sys.get_int_max_str_digits() or MAX_INT_DIGITS)
    if abs(value) >= 10**digits:
        _refuse(place, f"is an int of more than {digits:,} digits", "pass hex(value)")


def _refuse_depth(depth: int, place: Place) -> None:
    if depth > MAX_DEPTH:
        _refuse(place, f"lies deeper than {MAX_DEPTH} levels, or contains itself", "pass a flatter structure")


def _refuse(place: Place, reason: str, advice: str, error: type[PayloadError] = PayloadError) -> NoReturn:
    raise error(_path(place), reason, _with_hint(advice, place))


def _advice(kind: type) -> str:
    for bases, advice in _ADVICE:
        if issubclass(kind, bases):
            return advice
    for attribute, advice in _ADVICE_BY_ATTRIBUTE:
        if hasattr(kind, attribute):
            return advice
    if issubclass(kind, Iterable):
        return "pass list(value)"
    return "pass its id, or a str, number, list or dict made from it"


_ADVICE: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (enum.Enum, "pass value.value"),
    ((datetime.date, datetime.time), "pass value.isoformat()"),
    (datetime.timedelta, "pass value.total_seconds()"),
    ((decimal.Decimal, uuid.UUID, pathlib.PurePath), "pass str(value)"),
    ((bytes, bytearray, memoryview), "pass value.decode(), or base64.b64encode(value).decode()"),
    ((set, frozenset), "pass sorted(value)"),
)

# Django's classes, known by what they have: importing models here would need the app registry.
_ADVICE_BY_ATTRIBUTE: tuple[tuple[str, str], ...] = (
    ("getlist", "pass dict(value.lists())"),
    ("_proxy____cast", "pass str(value)"),  # a lazy translation
    ("_meta", "pass the primary key, value.pk"),
    ("values_list", "pass list(value.values_list('pk', flat=True))"),
    ("__dataclass_fields__", "pass dataclasses.asdict(value)"),
    ("__await__", "await it and pass what it returns"),
    ("keys", "pass dict(value)"),
)


def _with_hint(advice: str, place: Place) -> str:
    """Add the right call where an option of `using` came as an argument of the task."""
    root, *keys = _steps(place)
    if root != "kwargs" or not keys or keys[0] not in OPTIONS_OF_USING:
        return advice
    return f"{advice}; or, if it is meant for the queue, task.using({keys[0]}=...).enqueue(...)"


def _path(place: Place) -> str:
    root, *keys = _steps(place)
    text = root + "".join(f"[{_shown(key)}]" for key in keys)
    half = LONGEST_PATH_SHOWN // 2
    return text if len(text) <= LONGEST_PATH_SHOWN else f"{text[:half]}...{text[-half:]}"


def _steps(place: Place) -> list[Any]:
    steps = []
    while isinstance(place, tuple):
        place, key = place
        steps.append(key)
    return [place, *reversed(steps)]


def _shown(key: int | str) -> str:
    if isinstance(key, int):
        return str(key)
    return repr(str(key[:LONGEST_KEY_SHOWN])) + ("..." if len(key) > LONGEST_KEY_SHOWN else "")
