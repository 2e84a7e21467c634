import datetime
import math
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue.backoff import MAX_RETRY_AFTER_SECONDS, delay_seconds, retry_after_seconds
from pgqueue.exceptions import Retry

positive = st.floats(min_value=0, max_value=math.nextafter(math.inf, 0), exclude_min=True)


def full_delay(failure_number, *, base_seconds=2, cap_seconds=3_600):
    return delay_seconds(failure_number, base_seconds=base_seconds, cap_seconds=cap_seconds, random=lambda: 1.0)


def test_the_full_delay_doubles_up_to_the_cap():
    assert [full_delay(number) for number in range(1, 14)] == [
        2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024, 2_048, 3_600, 3_600,
    ]  # fmt: skip


@pytest.mark.case("G01")
@pytest.mark.case("G03")
def test_no_attempt_number_overflows_or_passes_the_cap():
    """Base 10, attempts 1 to 5,000 (G01), and past attempt 46 (G03)."""
    delays = [full_delay(number, base_seconds=10) for number in range(1, 5_001)]
    assert max(delays) == 3_600
    assert delays == sorted(delays)


@pytest.mark.case("G04")
@pytest.mark.parametrize("failures", [10_000, 10**6, 10**400])
def test_a_long_outage_waits_the_cap(failures):
    """Thousands of failed polls in a row."""
    assert full_delay(failures, cap_seconds=30) == 30


@pytest.mark.case("G03")
@given(
    number=st.integers(min_value=1, max_value=10**6),
    base=positive,
    cap=positive,
    jitter=st.floats(allow_nan=True, allow_infinity=True),
)
def test_the_delay_is_never_negative_and_never_above_the_cap(number, base, cap, jitter):
    """Any base and cap, also 1e300, and any jitter source."""
    delay = delay_seconds(number, base_seconds=base, cap_seconds=cap, random=lambda: jitter)
    assert 0 <= delay <= cap


@given(
    number=st.integers(min_value=1, max_value=3_000),
    base=st.floats(min_value=1e-3, max_value=1e6),
    jitter=st.floats(min_value=0, max_value=1, exclude_max=True),
)
def test_jitter_lies_between_half_and_the_whole(number, base, jitter):
    delay = delay_seconds(number, base_seconds=base, cap_seconds=1e7, random=lambda: jitter)
    whole = full_delay(number, base_seconds=base, cap_seconds=1e7)
    assert whole / 2 <= delay <= whole


def test_failures_at_the_same_moment_do_not_come_back_together():
    assert len({delay_seconds(5, base_seconds=2, cap_seconds=3_600) for _ in range(100)}) > 90


@pytest.mark.parametrize(
    ("number", "base", "cap"), [(1, 10, 5), (1, 15, 9), (2, 3, 5), (2, sys.float_info.max, sys.float_info.max)]
)
def test_a_delay_above_the_cap_is_the_cap(number, base, cap):
    assert full_delay(number, base_seconds=base, cap_seconds=cap) == cap


@pytest.mark.case("G03")
@pytest.mark.parametrize(
    ("field", "value"),
    [
        (field, value)
        for field in ("base_seconds", "cap_seconds")
        for value in (0, -1, math.nan, math.inf, -math.inf, None, "2")
    ]
    + [("failure_number", value) for value in (0, -1, 1.0, None)],
)
def test_nonsense_is_refused_by_name(field, value):
    """A wrong policy is reported as such, never taken for a long wait."""
    policy = {"failure_number": 1, "base_seconds": 2, "cap_seconds": 60, field: value}
    with pytest.raises(ValueError, match=field):
        delay_seconds(policy.pop("failure_number"), **policy)


def told(**attributes):
    exc = RuntimeError("throttled")
    vars(exc).update(attributes)
    return exc


def answered(headers):
    return told(response=types.SimpleNamespace(headers=headers))


@pytest.mark.parametrize(
    ("exc", "seconds"),
    [
        (Retry("later", after_seconds=30), 30),
        (told(retry_after=2.5), 2.5),
        (told(retry_after="7"), 7),
        (told(retry_after=datetime.timedelta(minutes=1)), 60),
        (answered({"Retry-After": "120"}), 120),
        (answered({"retry-after": "120"}), 120),
        (told(headers={"Retry-After": "9"}), 9),
        (told(retry_after=0), 0),
    ],
)
def test_a_wait_that_was_asked_for_is_read(exc, seconds):
    assert retry_after_seconds(exc) == seconds


@pytest.mark.parametrize(
    "exc",
    [
        ValueError("no wait"),
        Retry("later"),
        told(retry_after=True),
        told(retry_after=math.nan),
        told(retry_after="soon"),
        told(retry_after="9" * 10**6),
        told(retry_after=[3]),
        answered(None),
        answered({}),
        answered({"Retry-After": "Thu, 99 Foo 2026 12:00:00 GMT", "Date": "rubbish"}),
        answered(["Retry-After"]),
    ],
)
def test_a_wait_that_cannot_be_read_is_ignored(exc):
    assert retry_after_seconds(exc) is None


@pytest.mark.parametrize(
    ("value", "seconds"), [(-5, 0), (10**400, MAX_RETRY_AFTER_SECONDS), (math.inf, MAX_RETRY_AFTER_SECONDS)]
)
def test_a_wait_is_bounded(value, seconds):
    assert retry_after_seconds(told(retry_after=value)) == seconds


def test_a_date_is_measured_against_the_clock_that_wrote_it():
    headers = {"Date": "Sun, 29 Nov 2026 12:00:00 GMT", "Retry-After": "Sun, 29 Nov 2026 12:01:30 GMT"}
    assert retry_after_seconds(answered(headers)) == 90


def test_a_date_without_the_answers_own_date_is_ignored():
    assert retry_after_seconds(answered({"Retry-After": "Sun, 29 Nov 2026 12:01:30 GMT"})) is None


def test_a_failed_answer_that_is_falsy_is_read_all_the_same():
    class Answer:
        headers = {"Retry-After": "3"}

        def __bool__(self):
            return False

    assert retry_after_seconds(told(response=Answer())) == 3


def test_an_attribute_that_raises_is_no_wait():
    class HostileError(Exception):
        @property
        def response(self):
            raise RuntimeError("no response was set")

    assert retry_after_seconds(HostileError()) is None


def test_the_longest_wait_in_a_group_counts():
    group = ExceptionGroup("two", [Retry("a", 5), ExceptionGroup("inner", [Retry("b", 50), ValueError()])])
    assert retry_after_seconds(group) == 50
