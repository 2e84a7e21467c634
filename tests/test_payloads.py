import collections
import dataclasses
import datetime
import decimal
import enum
import json
import math
import pathlib
import sys
import types
import uuid

import pytest
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import given
from hypothesis import strategies as st

from pgqueue.exceptions import PayloadError, PayloadTooLargeError, PayloadTypeError, ResultError
from pgqueue.payloads import (
    MAX_DEPTH,
    MAX_INT_DIGITS,
    OPTIONS_OF_USING,
    decode,
    digest,
    encode_arguments,
    encode_result,
)

LIMIT = 1_000_000

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20)


def encode(*args, **kwargs):
    return encode_arguments(args, kwargs, max_bytes=LIMIT)


def back(value):
    return decode(encode(value)[0])[0]


def refusal(*args, **kwargs):
    with pytest.raises(PayloadError) as caught:
        encode(*args, **kwargs)
    return caught.value


def spelled_by_jsonb(value):
    """Spell parsed JSON as jsonb prints it: numbers as numeric keeps them, short keys first."""
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, list):
        return "[" + ", ".join(map(spelled_by_jsonb, value)) + "]"
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key), key))
        return "{" + ", ".join(f"{json.dumps(key)}: {spelled_by_jsonb(value[key])}" for key in keys) + "}"
    return json.dumps(value)


def test_nothing_is_stored_where_there_is_nothing_to_say():
    assert encode() == (None, None)
    assert encode(1) == ("[1]", None)
    assert encode(a=None) == (None, '{"a": null}')


@given(values)
def test_what_is_accepted_comes_back_as_the_same_value_and_type(value):
    assert repr(back(value)) == repr(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_keeps_its_value_and_type_in_jsonb(value):
    """jsonb expands exponents and keeps fractions: a float of 1e16 and more must bring a fraction along."""
    text = encode(value)[0].strip("[]")
    again = json.loads(format(decimal.Decimal(text), "f"))
    assert isinstance(again, float)
    assert again == value


@pytest.mark.case("H12")
def test_an_int_above_the_precision_of_a_double_is_exact():
    assert back(750_727_362_669_608_961) == 750_727_362_669_608_961


class Colour(enum.StrEnum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


Point = collections.namedtuple("Point", "x y")


@pytest.mark.case("H08")
@pytest.mark.case("H09")
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((1, (2,)), [1, [2]]),
        (Point(1, 2), [1, 2]),
        (Colour.RED, "red"),
        (Size.BIG, 3),
        ({Colour.RED: Size.BIG}, {"red": 3}),
        (mark_safe("<b>"), "<b>"),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.defaultdict(list, a=[1]), {"a": [1]}),
        (True, True),
        ("é🎉\x7f\u2028\n\"\\", "é🎉\x7f\u2028\n\"\\"),
        (1e308, 1e308),
        (5e-324, 5e-324),
        (-0.0, 0.0),
    ],
)  # fmt: skip
def test_values_that_come_back_as_their_plain_type(given, expected):
    """A table of expected results."""
    again = back(given)
    assert again == expected
    assert type(again) is type(expected)


class Shape(enum.Enum):
    ROUND = "round"


class Ratio(float, enum.Enum):
    HALF = 0.5


@dataclasses.dataclass
class Parcel:
    weight: int


class Row:
    """Looks like a model instance."""

    _meta = types.SimpleNamespace()
    pk = 1


class Rows:
    """Looks like a QuerySet."""

    def values_list(self):
        raise AssertionError("a refusal must not query")

    def __iter__(self):
        raise AssertionError("a refusal must not query")


class MultiDict(dict):
    """Looks like a QueryDict."""

    def getlist(self, key):
        return self[key]


async def coroutine():
    return None


@pytest.mark.case("H08")
@pytest.mark.case("H09")
@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), "value.isoformat()"),
        (datetime.date(2026, 1, 2), "value.isoformat()"),
        (datetime.time(1, 2), "value.isoformat()"),
        (datetime.timedelta(1), "value.total_seconds()"),
        (decimal.Decimal("1.5"), "str(value)"),
        (uuid.UUID(int=0), "str(value)"),
        (pathlib.Path("x"), "str(value)"),
        (b"x", "value.decode()"),
        (bytearray(b"x"), "value.decode()"),
        ({1}, "sorted(value)"),
        (frozenset(), "sorted(value)"),
        (Shape.ROUND, "value.value"),
        (Ratio.HALF, "value.value"),
        (Parcel(1), "dataclasses.asdict(value)"),
        (Row(), "primary key"),
        (Rows(), "values_list('pk', flat=True)"),
        (MultiDict(a=["1"]), "dict(value.lists())"),
        (types.MappingProxyType({}), "dict(value)"),
        ((n for n in [1]), "list(value)"),
        (range(3), "list(value)"),
        (collections.deque(), "list(value)"),
        (gettext_lazy("late"), "str(value)"),
        (1j, "str"),
        (object(), "its id"),
        (len, "its id"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_types_are_refused_with_what_to_pass_instead(value, advice):
    """A table of refusals, each a TypeError as with Django's own backends."""
    error = refusal({"x": [value]})
    assert isinstance(error, TypeError)
    assert error.path == "args[0]['x'][0]"
    assert type(value).__name__ in error.reason
    assert advice in str(error)


def test_a_coroutine_is_refused_with_the_advice_to_await_it():
    late = coroutine()
    assert "await it" in str(refusal(late))
    late.close()


def test_a_lazy_object_is_refused_without_being_loaded():
    def load():
        raise AssertionError("loaded")

    assert isinstance(refusal(SimpleLazyObject(load)), PayloadTypeError)


@pytest.mark.case("H08")
@pytest.mark.parametrize("key", [1, None, 1.5, True, (1,), b"x"])
def test_keys_that_would_come_back_as_str_are_refused(key):
    error = refusal([{"a": {key: 1}}])
    assert isinstance(error, PayloadTypeError)
    assert error.path == "args[0][0]['a']"
    assert type(key).__name__ in error.reason


@pytest.mark.case("H03")
@pytest.mark.case("H05")
@pytest.mark.parametrize("text", ["a\0b", "a\ud800", "\udfff", b"\xff".decode("utf8", "surrogateescape")])
def test_text_that_jsonb_cannot_hold_is_refused(text):
    """NUL and lone surrogates, in values and in keys."""
    assert refusal(["fine", text]).path == "args[0][1]"
    assert refusal(a={text: 1}).path.startswith("kwargs['a'][")
    assert refusal(**{text: 1}).path.startswith("kwargs[")


@pytest.mark.case("H14")
def test_a_refusal_never_shows_the_value():
    assert "S3CRET" not in str(refusal(token="S3CRET\0"))
    assert "S3CRET" not in str(refusal(token=b"S3CRET"))


@pytest.mark.case("H05")
def test_a_refusal_can_itself_be_stored():
    error = refusal(**{"k\0" + "\ud800" * 1_000: {"x" * 1_000: {"y" * 1_000: {1}}}})
    assert str(error).encode()
    assert "\0" not in str(error)
    assert len(str(error)) < 600


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_float_that_is_not_a_number_is_refused(value):
    assert "finite" in refusal(value).reason


def test_an_int_is_bounded_by_its_digits():
    assert back(10**MAX_INT_DIGITS - 1) == 10**MAX_INT_DIGITS - 1
    assert back(1 - 10**MAX_INT_DIGITS) == 1 - 10**MAX_INT_DIGITS
    assert "digits" in refusal(10**MAX_INT_DIGITS).reason
    assert "digits" in refusal(-(10**100_000)).reason


def test_a_lower_limit_of_pythons_own_counts():
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert back(10**639) == 10**639
        assert "640 digits" in refusal(10**640).reason
    finally:
        sys.set_int_max_str_digits(before)


def nested(levels):
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_depth_is_bounded():
    assert back(nested(MAX_DEPTH)) == nested(MAX_DEPTH)
    assert "deeper than 100 levels" in refusal(nested(MAX_DEPTH + 1)).reason
    assert "deeper than 100 levels" in refusal(nested(100_000)).reason


def test_a_structure_that_contains_itself_is_refused():
    ring = {}
    ring["again"] = [ring]
    error = refusal(ring)
    assert "contains itself" in error.reason
    assert len(str(error)) < 600


def test_lists_that_share_their_items_stop_at_the_limit():
    """50 lists in memory, 2 ** 50 in the text."""
    value = []
    for _ in range(50):
        value = [value, value]
    with pytest.raises(PayloadTooLargeError):
        encode_arguments((value,), {}, max_bytes=10_000)


def test_the_limit_counts_the_bytes_of_both_texts():
    args, kwargs = ("é" * 10,), {"a": "é" * 10}
    size = len('["ééééééééééé"]'.encode()) - 2 + len('{"a": "éééééééééé"}'.encode())
    assert encode_arguments(args, kwargs, max_bytes=size)
    with pytest.raises(PayloadTooLargeError) as caught:
        encode_arguments(args, kwargs, max_bytes=size - 1)
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (size, size - 1)


@given(values)
def test_counting_never_refuses_what_fits(value):
    text = encode(value)[0]
    assert encode_arguments((value,), {}, max_bytes=len(text.encode())) == (text, None)


@pytest.mark.case("H17")
@pytest.mark.parametrize("option", sorted(OPTIONS_OF_USING))
def test_an_option_given_as_an_argument_names_the_right_call(option):
    """task.enqueue(run_after=...) and its like."""
    error = refusal(**{option: datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)})
    assert error.path == f"kwargs['{option}']"
    assert f"using({option}=...)" in str(error)


@pytest.mark.case("H17")
def test_no_other_argument_names_that_call():
    assert "using" not in str(refusal(when=datetime.date(2026, 1, 1)))
    assert "using" not in str(refusal({"run_after": datetime.date(2026, 1, 1)}))


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, None), (0, "0"), ("", '""'), ([], "[]"), ({}, "{}"), (False, "false"), ((1, "a"), '[1, "a"]')],
)
def test_a_result_is_any_value_and_none_is_no_text(value, text):
    assert encode_result(value, max_bytes=LIMIT) == text


@pytest.mark.case("H02")
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"v": "a\0"}, "result['v']"),
        ({"a\0": 1}, "result['a\\x00']"),
        (["\ud800"], "result[0]"),
        ({1, 2}, "result"),
        ([math.nan], "result[0]"),
    ],
)
def test_a_result_that_cannot_be_stored_says_where_and_why(value, path):
    """NUL in a value and in a key, and their like."""
    with pytest.raises(ResultError) as caught:
        encode_result(value, max_bytes=LIMIT)
    assert caught.value.path == path
    assert "return " in caught.value.advice or "pass " in caught.value.advice


@pytest.mark.case("H11")
def test_a_result_above_its_limit_is_refused():
    with pytest.raises(ResultError, match="the limit is 100"):
        encode_result("x" * 1_000, max_bytes=100)


def test_decode_takes_text_bytes_and_what_a_driver_parsed():
    assert decode('{"a": [1]}') == decode(b'{"a": [1]}') == decode({"a": [1]}) == {"a": [1]}
    assert decode([1]) == [1]
    assert decode(None) is None


@given(st.lists(values, max_size=3), st.dictionaries(texts, values, max_size=3))
def test_a_digest_is_the_same_for_jsonbs_spelling(args, kwargs):
    given_texts = encode_arguments(args, kwargs, max_bytes=LIMIT)
    jsonb_texts = [text and spelled_by_jsonb(json.loads(text, parse_float=decimal.Decimal)) for text in given_texts]
    assert digest(*given_texts) == digest(*jsonb_texts)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((None, None), ("[]", "{}")),
        (("[1]", None), ("[ 1.0 ]", None)),
        (("[100]", None), ("[1e2]", None)),
        (("[0]", None), ("[-0.0]", None)),
        ((None, '{"a": 1, "b": {"c": 2, "d": 3}}'), (None, '{"b": {"d": 3, "c": 2}, "a": 1}')),
        (('["\\u00e9"]', None), ('["é"]', None)),
    ],
)
def test_equal_arguments_have_equal_digests(one, other):
    assert digest(*one) == digest(*other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("[1]", None), ("[true]", None)),
        (("[1]", None), ('["1"]', None)),
        (("[1, 2]", None), ("[2, 1]", None)),
        (("[null]", None), (None, None)),
        (("[1]", None), (None, '{"a": 1}')),
        (("[9007199254740993]", None), ("[9007199254740992]", None)),
        (("[0.1]", None), ("[0.10000000000000002]", None)),
    ],
)
def test_other_arguments_have_other_digests(one, other):
    assert digest(*one) != digest(*other)


def test_a_digest_never_changes_between_versions():
    """It is stored beside operation keys."""
    assert digest('[42, "é", 1.5, 2.0]', '{"b": null, "a": [true]}') == (
        "9846b6808ec14a8c87e6b7a4ddc6b3c72c0ec04219eed10de5c62699fddf91e7"
    )
