import copy
import importlib
import inspect
import pickle

import pytest
from django.core.exceptions import ImproperlyConfigured

from pgqueue import exceptions, refusals
from pgqueue.exceptions import (
    ArgumentsError,
    AttemptFailedError,
    Bury,
    EffectRefusedError,
    JobCancelledError,
    JobLostError,
    JobNotFoundError,
    JobPurgedError,
    JobStoppedError,
    JobTimeoutError,
    LeaseLostError,
    OperationKeyConflictError,
    OutcomeUnknownError,
    PayloadError,
    PayloadTooLargeError,
    PayloadTypeError,
    PGQueueError,
    ResultError,
    Retry,
    RunGoneError,
    SettingsError,
    UniqueKeyBusyError,
    UnknownTaskError,
)
from pgqueue.foreign import members
from pgqueue.refusals import (
    IdempotencyKeyReusedError,
    LimitNameError,
    ReasonMissingError,
    UnknownVerbError,
    VerbParamsError,
)

# Each error with its facts, and what its message must name.
EXAMPLES = [
    (PayloadError, {"path": "args[0]['x']", "reason": "is odd", "advice": "pass None"}, ["args[0]['x']"]),
    (PayloadTypeError, {"path": "args[0]", "reason": "is a set", "advice": "pass a list"}, ["pass a list"]),
    (PayloadTooLargeError, {"size_bytes": 2_000_000, "limit_bytes": 1_000_000}, ["2,000,000", "1,000,000"]),
    (ResultError, {"path": "result", "reason": "is odd", "advice": "return None"}, ["result", "is odd"]),
    (OperationKeyConflictError, {"task": "coupon", "key": "c:7", "job_id": 17}, ["coupon", "c:7", "17"]),
    (UnknownTaskError, {"task": "app.tasks.gone"}, ["app.tasks.gone", "deploy"]),
    (LeaseLostError, {"job_id": 5, "fence": 90}, ["5", "90"]),
    (SettingsError, {"problem": "PGQUEUE has no setting 'X'.", "hint": "Did you mean 'Y'?"}, ["'X'", "'Y'"]),
    (JobNotFoundError, {"job_id": "nonsense"}, ["nonsense"]),
    (UniqueKeyBusyError, {"task": "t", "key": "order:7"}, ["'t'", "order:7", "Read Committed"]),
    (LimitNameError, {"name": "acme", "kinds": ("tenant", "task")}, ["acme", "tenant, task", "tenant:acme"]),
    (
        IdempotencyKeyReusedError,
        {"key": "k", "seen": "pause 1", "expected": "pause 2"},
        ["pause 1", "pause 2"],
    ),
    (UnknownVerbError, {"verb": "rnu", "known": ("pause", "requeue")}, ["rnu", "pause", "requeue"]),
    (EffectRefusedError, {"job_id": 5, "effect": "sms", "reason": "a block is open"}, ["5", "sms", "a block"]),
    (OutcomeUnknownError, {"job_id": 5, "effects": ("sms", "mail")}, ["5", "sms", "mail"]),
    (VerbParamsError, {"verb": "happened", "param": "evidence", "problem": "is missing"}, ["happened", "evidence"]),
    (ReasonMissingError, {"verb": "pause"}, ["pause", "reason"]),
    (ArgumentsError, {"task": "shop.pay", "reason": "missing a required argument: 'x'"}, ["shop.pay", "'x'"]),
    (JobCancelledError, {"job_id": 5}, ["5"]),
    (JobPurgedError, {"job_id": 5}, ["5", "audit log"]),
    (JobLostError, {"job_id": 5, "fence": 90}, ["5", "90"]),
    (JobStoppedError, {"job_id": 5}, ["5", "asked to stop"]),
    (RunGoneError, {"job_id": 5}, ["5", "pthread_exit"]),
    (JobTimeoutError, {"job_id": 5, "limit_seconds": 30.0}, ["5", "30", "max_run_seconds"]),
    (AttemptFailedError, {"class_path": "builtins.KeyError", "traceback": "x.py, line 1"}, ["KeyError", "line 1"]),
]
examples = pytest.mark.parametrize(("kind", "facts", "named"), EXAMPLES, ids=[kind.__name__ for kind, _, _ in EXAMPLES])


def errors_of_the_page():
    found = [kind for page in (exceptions, refusals) for _, kind in inspect.getmembers(page, inspect.isclass)]
    return {kind for kind in found if kind.__module__ in (exceptions.__name__, refusals.__name__)}


def test_every_error_has_an_example_here():
    assert errors_of_the_page() == {kind for kind, _, _ in EXAMPLES} | {PGQueueError, Retry, Bury}


def test_every_error_ends_in_error_and_has_one_base():
    for kind in errors_of_the_page() - {Retry, Bury}:
        assert kind.__name__.endswith("Error")
        assert issubclass(kind, PGQueueError)


@examples
def test_an_error_carries_its_facts_and_names_them(kind, facts, named):
    error = kind(**facts)
    assert {name: getattr(error, name) for name in facts} == facts
    for words in named:
        assert words in str(error)


@examples
@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_survives_copying_and_pickling(kind, facts, named, again):
    error = kind(**facts)
    same = again(error)
    assert type(same) is kind
    assert (str(same), vars(same)) == (str(error), vars(error))


@examples
def test_an_errors_class_is_found_by_its_path(kind, facts, named):
    assert getattr(importlib.import_module(kind.__module__), kind.__qualname__) is kind


@pytest.mark.case("H05")
@pytest.mark.parametrize("name", ["x" * 10**6, "\ud800" * 9, "a\0b"])
def test_a_hostile_name_makes_a_short_and_storable_message(name):
    """NUL, lone surrogates and a megabyte in a task's name."""
    message = str(UnknownTaskError(name))
    assert len(message) < 600
    assert "\0" not in message
    assert message.encode()


@pytest.mark.case("H09")
@pytest.mark.parametrize("builtin", [TypeError, ValueError, PayloadError])
def test_a_payload_type_error_is_what_django_raises_too(builtin):
    with pytest.raises(builtin):
        raise PayloadTypeError("args[0]", "is a set", "pass a list")


def test_a_settings_error_is_a_configuration_error_of_django():
    assert issubclass(SettingsError, ImproperlyConfigured)
    assert str(SettingsError("PGQUEUE is a list, not a dict.")) == "PGQUEUE is a list, not a dict."


def test_the_verbs_say_their_reason():
    retry, bury = Retry("gateway is busy", after_seconds=30), Bury("no such user")
    assert (str(retry), retry.reason, retry.after_seconds) == ("gateway is busy", "gateway is busy", 30)
    assert (str(bury), bury.reason) == ("no such user", "no such user")
    assert Retry("later").after_seconds is None


def test_verbs_survive_pickling():
    retry = pickle.loads(pickle.dumps(Retry("busy", after_seconds=30)))
    assert (retry.reason, retry.after_seconds) == ("busy", 30)


def test_the_members_of_a_group_come_once_however_deep():
    shared = ValueError("shared")
    group = ExceptionGroup("outer", [shared])
    for _ in range(5_000):
        group = ExceptionGroup("deeper", [group, shared])
    assert list(members(group)) == [shared]
    assert list(members(shared)) == [shared]
