import asyncio
import concurrent.futures
import socket
import sys
import time
import traceback

import pytest
from django import db
from django.core import exceptions as django_exceptions
from django.utils.module_loading import import_string
from hypothesis import given
from hypothesis import strategies as st

from pgqueue import failures
from pgqueue.exceptions import (
    Bury,
    JobCancelledError,
    JobLostError,
    JobNotFoundError,
    LeaseLostError,
    OperationKeyConflictError,
    PayloadTooLargeError,
    PayloadTypeError,
    ResultError,
    Retry,
    UnknownTaskError,
)
from pgqueue.failures import FailureClass, classify, describe, is_retryable, redact


class DriverError(Exception):
    """Looks like a psycopg error."""

    def __init__(self, sqlstate):
        super().__init__("driver")
        self.sqlstate = sqlstate


def wrapped(kind, sqlstate):
    """Build what Django raises: its own class, with the driver's exception as cause."""
    exc = kind("django")
    exc.__cause__ = DriverError(sqlstate)
    return exc


def raised(exc):
    try:
        raise exc
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    "exc",
    [
        Bury("no such user"),
        django_exceptions.ObjectDoesNotExist(),
        django_exceptions.MultipleObjectsReturned(),
        django_exceptions.ValidationError("odd"),
        django_exceptions.SuspiciousOperation(),
        django_exceptions.DisallowedHost(),
        django_exceptions.PermissionDenied(),
        TypeError(),
        AssertionError(),
        PayloadTypeError("args[0]", "is a set", "pass a list"),
        PayloadTooLargeError(2, 1),
        OperationKeyConflictError("t", "k", 1),
        UnknownTaskError("t"),
        JobNotFoundError(1),
        db.DataError(),
        wrapped(db.DataError, "22003"),
        DriverError("22P02"),
    ],
    ids=repr,
)
def test_content_failures_are_not_retried(exc):
    assert classify(exc) is FailureClass.CONTENT
    assert not is_retryable(classify(exc))


@pytest.mark.case("G07")
@pytest.mark.parametrize(
    "exc",
    [
        SystemExit(1),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
        MemoryError(),
        RecursionError(),
        Exception(),
        ValueError(),
        UnicodeDecodeError("utf8", b"\xff", 0, 1, "odd"),
        KeyError("x"),
        ImportError(),
        OSError(),
        Retry("later"),
        wrapped(db.IntegrityError, "23505"),
        wrapped(db.ProgrammingError, "42P01"),
        wrapped(db.OperationalError, "53100"),
        db.IntegrityError(),
    ],
    ids=repr,
)
def test_what_is_not_known_to_be_final_is_retried(exc):
    """BaseExceptions, which end an attempt but not the worker, among them."""
    assert classify(exc) is FailureClass.SYSTEM
    assert is_retryable(classify(exc))


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (wrapped(db.OperationalError, "40P01"), FailureClass.DEADLOCK),
        (DriverError("40P01"), FailureClass.DEADLOCK),
        (wrapped(db.OperationalError, "40001"), FailureClass.SERIALIZATION),
        (wrapped(db.OperationalError, "08006"), FailureClass.CONNECTION),
        (wrapped(db.OperationalError, "53300"), FailureClass.CONNECTION),
        (wrapped(db.OperationalError, "57P01"), FailureClass.CONNECTION),
        (wrapped(db.OperationalError, "57P02"), FailureClass.CONNECTION),
        (wrapped(db.OperationalError, "57P03"), FailureClass.CONNECTION),
        (wrapped(db.OperationalError, None), FailureClass.CONNECTION),
        (db.OperationalError("server closed the connection"), FailureClass.CONNECTION),
        (db.InterfaceError("connection already closed"), FailureClass.CONNECTION),
        (ConnectionResetError(), FailureClass.CONNECTION),
        (BrokenPipeError(), FailureClass.CONNECTION),
        (wrapped(db.OperationalError, "57014"), FailureClass.TIMEOUT),
        (wrapped(db.OperationalError, "55P03"), FailureClass.TIMEOUT),
        (TimeoutError(), FailureClass.TIMEOUT),
        (socket.timeout(), FailureClass.TIMEOUT),  # noqa: UP041 - the old names are what authors raise
        (asyncio.TimeoutError(), FailureClass.TIMEOUT),  # noqa: UP041
        (concurrent.futures.TimeoutError(), FailureClass.TIMEOUT),
        (Retry("busy", after_seconds=30), FailureClass.THROTTLED),
        (Retry("busy", after_seconds=0), FailureClass.THROTTLED),
        (LeaseLostError(1, 2), FailureClass.LEASE_LOST),
        (JobLostError(1, 2), FailureClass.LEASE_LOST),
    ],
    ids=repr,
)
def test_failures_of_the_surroundings_are_counted_apart_and_retried(exc, expected):
    assert classify(exc) is expected
    assert is_retryable(expected)


@pytest.mark.case("H02")
@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (ResultError("result", "is a set", "return a list"), FailureClass.RESULT),
        (JobCancelledError(1), FailureClass.STOPPED),
    ],
)
def test_endings_that_another_attempt_cannot_change_are_final(exc, expected):
    assert classify(exc) is expected
    assert not is_retryable(expected)


def test_every_retry_that_a_remote_asks_for_is_throttling():
    exc = RuntimeError("429")
    exc.retry_after = 10
    assert classify(exc) is FailureClass.THROTTLED


def test_the_cause_of_an_authors_own_exception_does_not_speak_for_it():
    exc = django_exceptions.ValidationError("odd")
    exc.__cause__ = DriverError("40P01")
    assert classify(exc) is FailureClass.CONTENT


class GatewayError(Exception):
    pass


class RefusedError(GatewayError):
    pass


def test_the_tasks_lists_win_over_the_defaults():
    assert classify(TypeError(), retry_on=(TypeError,)) is FailureClass.SYSTEM
    assert classify(ValueError(), bury_on=(ValueError,)) is FailureClass.CONTENT
    assert classify(TypeError(), retry_on=(Exception,)) is FailureClass.SYSTEM
    assert classify(wrapped(db.OperationalError, "40P01"), bury_on=(db.Error,)) is FailureClass.CONTENT


def test_of_the_tasks_lists_the_more_specific_class_wins():
    lists = {"retry_on": (GatewayError,), "bury_on": (RefusedError,)}
    assert classify(GatewayError(), **lists) is FailureClass.SYSTEM
    assert classify(RefusedError(), **lists) is FailureClass.CONTENT
    lists = {"retry_on": (RefusedError,), "bury_on": (GatewayError,)}
    assert classify(GatewayError(), **lists) is FailureClass.CONTENT
    assert classify(RefusedError(), **lists) is FailureClass.SYSTEM


def test_on_a_tie_of_the_tasks_lists_retry_wins():
    assert classify(KeyError(), retry_on=(KeyError,), bury_on=(KeyError,)) is FailureClass.SYSTEM


def test_a_retried_exception_keeps_its_own_class():
    assert classify(TimeoutError(), retry_on=(OSError,)) is FailureClass.TIMEOUT
    assert classify(wrapped(db.OperationalError, "40P01"), retry_on=(Exception,)) is FailureClass.DEADLOCK


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (Bury("no"), FailureClass.CONTENT),
        (ResultError("result", "is a set", "return a list"), FailureClass.RESULT),
        (JobCancelledError(1), FailureClass.STOPPED),
        (LeaseLostError(1, 2), FailureClass.LEASE_LOST),
        (Retry("later"), FailureClass.SYSTEM),
    ],
    ids=repr,
)
def test_verbs_and_the_queues_own_errors_outweigh_the_tasks_lists(exc, expected):
    assert classify(exc, retry_on=(Exception,)) is expected
    assert classify(exc, bury_on=(Exception,)) is expected


def test_a_subclass_of_a_verb_is_that_verb():
    class GiveUp(Bury):
        pass

    assert classify(GiveUp("no"), retry_on=(Exception,)) is FailureClass.CONTENT


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([Bury("no")], FailureClass.CONTENT),
        ([TypeError(), Bury("no")], FailureClass.CONTENT),
        ([TimeoutError()], FailureClass.TIMEOUT),
        ([Retry("busy", 5)], FailureClass.THROTTLED),
        ([TypeError(), TimeoutError()], FailureClass.SYSTEM),
        ([ExceptionGroup("inner", [TimeoutError()]), TimeoutError()], FailureClass.TIMEOUT),
    ],
)
def test_a_group_is_of_its_members_class_where_they_agree(members, expected):
    assert classify(ExceptionGroup("group", members)) is expected


def test_the_tasks_lists_reach_into_a_group():
    group = ExceptionGroup("group", [RefusedError()])
    assert classify(group, bury_on=(GatewayError,)) is FailureClass.CONTENT
    assert classify(ExceptionGroup("group", [Bury("no")]), retry_on=(ExceptionGroup,)) is FailureClass.SYSTEM


def test_a_deep_group_is_classified():
    group = ExceptionGroup("inner", [TimeoutError()])
    for _ in range(5_000):
        group = ExceptionGroup("outer", [group])
    assert classify(group) is FailureClass.TIMEOUT


class Model:
    class DoesNotExist(django_exceptions.ObjectDoesNotExist):
        pass


@pytest.mark.parametrize(
    ("exc", "path", "message"),
    [
        (ValueError("odd"), "builtins.ValueError", "odd"),
        (Retry("busy"), "pgqueue.exceptions.Retry", "busy"),
        (KeyError("x"), "builtins.KeyError", "'x'"),
        (GatewayError("down"), f"{__name__}.GatewayError", "down"),
        (
            Model.DoesNotExist("none matches"),
            "django.core.exceptions.ObjectDoesNotExist",
            "Model.DoesNotExist: none matches",
        ),
        (type("Lo cal\n" * 10**5, (KeyError,), {})("x"), "builtins.KeyError", None),
        (type("NoModule", (ValueError,), {"__module__": 5})("x"), "builtins.ValueError", "NoModule: x"),
        (SystemExit(3), "builtins.SystemExit", "3"),
        (TimeoutError(), "builtins.TimeoutError", ""),
    ],
    ids=["builtin", "verb", "key", "module", "nested", "hostile", "no module", "exit", "empty"],
)
def test_the_class_path_can_be_imported_and_the_message_names_the_rest(exc, path, message):
    description = describe(exc)
    assert description.class_path == path
    assert isinstance(exc, import_string(path))
    if message is not None:
        assert description.message == message


def test_a_class_of_a_test_or_a_function_is_named_in_the_message():
    class LocalError(Exception):
        pass

    description = describe(LocalError("here"))
    assert (description.class_path, description.message) == ("builtins.Exception", "LocalError: here")


def test_a_traceback_tells_where_and_why():
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            raise RuntimeError("second") from error
    except RuntimeError as error:
        text = describe(error).traceback
    assert "KeyError: 'first'" in text
    assert "direct cause" in text
    assert text.rstrip().endswith("RuntimeError: second")
    assert "test_failures.py" in text


def storable(text):
    return "\0" not in text and text.encode() is not None


@pytest.mark.case("H01")
def test_nul_is_shown_escaped():
    description = describe(raised(ValueError("a\0b", "c\0d")))
    assert "\\x00" in description.message
    assert storable(description.message)
    assert storable(description.traceback)
    assert describe(ValueError("a\0b")).message == "a\\x00b"


@pytest.mark.case("H01")
def test_nul_in_a_source_line_of_the_traceback_is_shown_escaped(monkeypatch):
    monkeypatch.setattr(traceback, "format_exception", lambda exc: ["  x = 'a\0b'\n"])
    assert describe(ValueError()).traceback == "  x = 'a\\x00b'\n"


@pytest.mark.case("H05")
@pytest.mark.case("H06")
def test_lone_surrogates_are_shown_escaped():
    name = b"caf\xff.txt".decode("utf8", "surrogateescape")
    description = describe(raised(OSError(2, "no such file", name)))
    assert "caf\\udcff.txt" in description.message
    assert describe(ValueError("\ud800")).message == "\\ud800"
    assert storable(description.message)
    assert storable(description.traceback)


@given(st.text(), st.integers(0, 200), st.integers(0, 200))
def test_any_message_is_stored_within_the_limits(text, max_message, max_traceback):
    description = describe(raised(ValueError(text)), max_message=max_message, max_traceback=max_traceback)
    assert len(description.message) <= max_message
    assert len(description.traceback) <= max_traceback
    assert storable(description.message)
    assert storable(description.traceback)


@pytest.mark.case("H11")
def test_a_huge_message_is_cut_before_it_is_searched(monkeypatch):
    """10 MB; nothing that searches may see more than the limit and its slack."""
    seen = []
    monkeypatch.setattr(failures, "redact", lambda text: seen.append(len(text)) or text)
    description = describe(raised(ValueError("x" * 10_000_000)))
    assert max(seen) <= 20_000 + 2 * failures.SLACK
    assert len(description.message) == 1_000
    assert description.message.endswith("[cut]")
    assert len(description.traceback) <= 20_000


def test_a_cut_traceback_keeps_head_and_tail():
    exc = raised(ValueError("\n".join(f"line {number}" for number in range(10_000))))
    text = describe(exc).traceback
    assert text.startswith("Traceback (most recent call last):")
    assert "[... cut from " in text
    assert text.rstrip().endswith("line 9999")


def test_a_str_that_raises_is_reported():
    class MuteError(Exception):
        def __str__(self):
            raise SystemExit("mute")

    description = describe(raised(MuteError()))
    assert "its __str__ raised SystemExit" in description.message
    assert "MuteError" in description.traceback


def test_a_traceback_that_cannot_be_formatted_is_reported(monkeypatch):
    def broken(exc):
        raise RuntimeError("broken")

    monkeypatch.setattr(traceback, "format_exception", broken)
    assert describe(ValueError("x")).traceback == "ValueError: x\n(the traceback could not be formatted: RuntimeError)"


def test_groups_and_long_chains_are_described():
    exc = ExceptionGroup("many", [ValueError(str(number)) for number in range(1_000)])
    for number in range(200):
        follower = RuntimeError(str(number))
        follower.__cause__ = exc
        exc = follower
    description = describe(raised(exc))
    assert description.message == "199"
    assert len(description.traceback) <= 20_000


def test_endless_recursion_is_described():
    def fall():
        fall()

    with pytest.raises(RecursionError) as caught:
        fall()
    assert "more times" in describe(caught.value).traceback


def test_a_class_of_the_main_script_is_not_found_by_another_process(monkeypatch):
    kind = type("ScriptError", (ValueError,), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "ScriptError", kind, raising=False)
    assert describe(kind("x")).class_path == "builtins.ValueError"


def test_a_broken_module_table_does_not_matter(monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, None)
    assert describe(GatewayError("down")).class_path == "builtins.Exception"


SECRET = "hunter2-S3CRET"


@pytest.mark.case("H14")
@pytest.mark.parametrize(
    "text",
    [
        f"postgres://app:{SECRET}@db:5432/app",
        f"connect to amqp+ssl://app:{SECRET}@mq failed",
        f"redis://:{SECRET}@cache/0",
        f"postgres://app:a@{SECRET}@db,postgres://app:a/{SECRET}@db",
        f"host=db password={SECRET} user=app",
        f"host=db password='a {SECRET}' user=app",
        f"password='it\\'s {SECRET}'",
        f"PGPASSWORD={SECRET}",
        f"passwd: {SECRET}",
        f"client_secret={SECRET}&grant=x",
        f'{{"api_key": "{SECRET}", "a": 1}}',
        f"{{'apikey': '{SECRET}'}}",
        f"{{'access_key': b'a {SECRET}'}}",
        f'"{{\\"token\\": \\"a {SECRET}\\"}}"',
        f"aws_secret_access_key = {SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"Authorization: Basic {SECRET}",
        f"Authorization: Digest a=b, {SECRET}",
        f"{{'Authorization': 'Token {SECRET}'}}",
        f"sent Bearer {SECRET} and failed",
        f"Cookie: a=b; c={SECRET}",
        f"Set-Cookie: {SECRET}",
        f"session={SECRET}",
        f"sessionid={SECRET}",
        f"X-Api-Key: {SECRET}",
        f"(b'x-api-key', b'{SECRET}')",
        f"os.environ.get('DB_PASSWORD', '{SECRET}')",
        f"config['password'] = '{SECRET}'",
        f"<password>{SECRET}</password>",
        f"tokens=['a', '{SECRET}']",
        f"session: {{'id': 'a', 'key': '{SECRET}'}}",
        f'password = """{SECRET}"""',
        f"Key (user_id, token)=(7, {SECRET}) already exists.",
        f"Failing row contains (7, bob, {SECRET}).",
        f"-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----",
        f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n",
        f"PASSWORD={SECRET}",
    ],
)
def test_secrets_are_redacted_in_message_and_traceback(text):
    description = describe(raised(ValueError(f"before\n{text}\nafter")))
    for stored in (description.message, description.traceback):
        assert SECRET not in stored
        assert "[redacted]" in stored
        assert "before" in stored
    assert redact(redact(text)) == redact(text)


@pytest.mark.case("H14")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("host=db password=x user=app", "host=db password=[redacted] user=app"),
        ("postgres://app:x@db/app", "postgres://app:[redacted]@db/app"),
        ('{"password": "x", "a": 1}', '{"password": [redacted], "a": 1}'),
        ("Cookie: a=b; c=d\nnext line", "Cookie: [redacted]\nnext line"),
    ],
)
def test_redaction_leaves_the_rest(text, expected):
    assert redact(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "invalid password for user bob",
        "https://example.com:8080/path?email=bob",
        "the session has ended, token expired",
        "KeyError: 'x'",
        '  File "/app/sessions/tokens.py", line 3, in refresh',
    ],
)
def test_plain_prose_is_left_alone(text):
    assert redact(text) == text


@pytest.mark.case("H14")
@pytest.mark.parametrize("before", range(0, 30_000, 997))
def test_a_secret_across_a_cut_is_redacted(before):
    """The name of the secret falls into what is cut out, its value into the tail, or the other way round."""
    secret = "S3CRET" * 40
    key = f"-----BEGIN PRIVATE KEY-----\n{chr(10).join(['S3CRET' * 10] * 50)}\n-----END PRIVATE KEY-----\n"
    text = "x " * (before // 2) + f"password={secret}\n{key}" + "y " * 13_000
    description = describe(ValueError(text))
    assert "S3CRET" not in description.message
    assert "S3CRET" not in description.traceback


@pytest.mark.case("H14")
@pytest.mark.parametrize("window", range(0, 9_000, 97))
def test_a_tail_never_begins_inside_a_secret(window):
    """Even where redaction shortens the tail so much that its first words are kept."""
    block = "S3CRET" * 10 + "\n"
    text = "x" * 30_000 + block * 400 + "-----END PRIVATE KEY-----\n" + "password=" + "z" * window
    assert "S3CRET" not in describe(ValueError(text), max_traceback=2_000).traceback[1_000:]


@pytest.mark.case("H14")
def test_a_secret_longer_than_the_tail_is_dropped_from_it():
    text = "a " * 10_000 + "password=" + "S3CRET" * 5_000
    assert "S3CRET" not in describe(ValueError(text)).traceback


HOSTILE = [
    "password",
    "password ",
    "password=",
    'password="',
    "password='\\",
    "api_key \\\\",
    "token[(",
    "://",
    "://a:",
    "a://b:c@",
    "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----",
    "-----END ",
    "Bearer ",
    "Key (",
    "Key (token",
    "\\",
    '"',
    " ",
    "\n",
    "a",
    "authorization:",
    "cookie: '",
]


def processor_seconds(call):
    """Return the processor time of a call, the best of three: what other processes do does not count."""
    times = []
    for _ in range(3):
        begun = time.process_time()
        call()
        times.append(time.process_time() - begun)
    return min(times)


@pytest.mark.parametrize("unit", HOSTILE)
def test_redaction_takes_time_linear_in_the_text(unit):
    """Four times the text, about four times the time: sixteen times would be quadratic. Then a megabyte."""
    text = unit * (40_000 // len(unit))
    once = processor_seconds(lambda: redact(text))
    assert processor_seconds(lambda: redact(text * 4)) < 9 * max(once, 0.005)
    assert redact(text * 25) is not None
