"""The `PGQUEUE` dict: every fault is told, with what to do, by the checks and by the first use."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.test import override_settings

from pgqueue import conf, registry
from pgqueue.conf import Settings
from pgqueue.exceptions import SettingsError
from tests.inline import IMMEDIATE

FIELDS = {field.name.upper(): field for field in dataclasses.fields(Settings)}
NUMBERS = [name for name, field in FIELDS.items() if field.type in ("int", "float")]
FLAGS = [name for name, field in FIELDS.items() if field.type == "bool"]


def _check() -> list[Any]:
    return [message for message in checks.run_checks(tags=["pgqueue"], databases=[]) if message.id == "pgqueue.E010"]


def test_without_a_dict_the_defaults_hold(settings: Any) -> None:
    if hasattr(settings, "PGQUEUE"):
        del settings.PGQUEUE
    conf.current.cache_clear()
    assert conf.current() == Settings()
    assert (Settings().lease_seconds, Settings().heartbeat_seconds) == (60.0, 20.0)
    assert (Settings().concurrency, Settings().poll_seconds, Settings().max_attempts) == (10, 10.0, 8)
    assert (Settings().backoff_base_seconds, Settings().backoff_cap_seconds) == (2.0, 3600.0)
    assert Settings().max_lease_losses == 3
    assert _check() == []


def test_every_default_would_be_accepted_as_a_setting() -> None:
    given = {name: getattr(Settings(), name.lower()) for name in FIELDS}
    assert list(conf.problems(given)) == []


def test_a_change_holds_at_once_and_ends_with_the_override() -> None:
    before = conf.current()
    with override_settings(PGQUEUE={"LEASE_SECONDS": 30, "TASK_MODULES": ["tasks", "jobs"]}):
        assert conf.current().lease_seconds == 30
        assert conf.current().task_modules == ("tasks", "jobs")
        assert conf.current().max_attempts == Settings().max_attempts
    assert conf.current() == before


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("LEASE_SECOND", "LEASE_SECONDS"),
        ("lease_seconds", "LEASE_SECONDS"),
        ("MAX_ATTEMPT", "MAX_ATTEMPTS"),
        ("CONCURENCY", "CONCURRENCY"),
        ("NOTIFI", "NOTIFY"),
    ],
)
def test_an_unknown_key_is_told_with_the_nearest_known_one(key: str, meant: str) -> None:
    with override_settings(PGQUEUE={key: 1}):
        (message,) = _check()
        assert message.msg == f"PGQUEUE[{key!r}] is not a setting."
        assert message.hint == f"Did you mean {meant!r}?"


@pytest.mark.parametrize("key", ["QQQ", 7, None, ""])
def test_a_key_like_no_other_is_told_with_all_there_are(key: Any) -> None:
    (problem,) = conf.problems({key: 1})
    assert all(name in problem.advice for name in FIELDS)


@pytest.mark.parametrize("given", [None, [], "LEASE_SECONDS=3", 3])
def test_anything_but_a_dict_is_refused(given: Any) -> None:
    with override_settings(PGQUEUE=given):
        (message,) = _check()
        assert "not a dict" in message.msg
        with pytest.raises(SettingsError):
            conf.current()


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "3", None, True, [3]])
def test_a_number_must_be_one_above_zero(name: str, value: Any) -> None:
    assert name in {problem.key for problem in conf.problems({name: value})}


@pytest.mark.parametrize("name", [name for name in NUMBERS if FIELDS[name].type == "int"])
def test_a_whole_number_must_be_whole(name: str) -> None:
    assert name in {problem.key for problem in conf.problems({name: 2.5})}


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [0, 1, "yes", None])
def test_a_flag_must_be_true_or_false(name: str, value: Any) -> None:
    (problem,) = conf.problems({name: value})
    assert problem.key == name
    assert "bool" in problem.advice


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ({"MAX_ATTEMPTS": 32_001}, "at most 32000"),
        ({"MAX_LEASE_LOSSES": 100_000}, "at most 32000"),
        ({"DATABASE": "nowhere"}, "default"),
        ({"DATABASE": 1}, "str"),
        ({"TASK_MODULES": "tasks"}, "tuple"),
        ({"TASK_MODULES": ["tasks", 1]}, "names of modules"),
        ({"TASK_MODULES": [""]}, "names of modules"),
        ({"EXCLUDED_TASK_APPS": ("shop", 1)}, "names or labels of apps"),
    ],
)
def test_a_value_out_of_range_is_told_with_the_range(given: dict[str, Any], hint: str) -> None:
    with override_settings(PGQUEUE=given):
        (message,) = _check()
        assert hint in message.hint


@pytest.mark.case("B11")
@pytest.mark.parametrize("beats", [1, 0])
def test_a_lease_that_would_run_out_before_its_renewal_is_an_error(beats: int) -> None:
    with override_settings(PGQUEUE={"HEARTBEATS_PER_LEASE": beats}):
        message = _check()[-1]
        assert (message.id, message.level) == ("pgqueue.E010", checks.ERROR)
        assert "run out before its first renewal" in message.msg
        assert "use 3" in message.hint.lower()


def test_every_fault_is_told_by_the_checks_and_the_first_by_the_first_use() -> None:
    with override_settings(PGQUEUE={"LEASE_SECOND": 1, "POLL_SECONDS": -1}):
        assert len(_check()) == 2
        with pytest.raises(SettingsError) as caught:
            conf.current()
        assert str(caught.value) == "PGQUEUE['LEASE_SECOND'] is not a setting. Did you mean 'LEASE_SECONDS'?"
        assert isinstance(caught.value, ImproperlyConfigured)


def test_settings_cannot_be_changed_in_place() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        conf.current().lease_seconds = 1  # type: ignore[misc]


# -- checks of what the settings meet ----------------------------------------------------------------------


def _ids() -> list[str]:
    return [message.id for message in checks.run_checks(tags=["pgqueue"], databases=[])]


@pytest.fixture
def database() -> Iterator[dict[str, Any]]:
    """The settings of the default database, as they were afterwards."""
    given = connections.settings["default"]
    before = {**given, "OPTIONS": dict(given["OPTIONS"])}
    yield given
    given.clear()
    given.update(before)


@pytest.mark.case("J15")
@pytest.mark.parametrize(
    ("pool", "concurrency", "is_enough"),
    [
        (True, 3, False),
        (True, 2, True),
        ({"min_size": 2, "max_size": 2}, 8, False),
        ({"min_size": 2, "max_size": None}, 1, False),
        ({"max_size": 8}, 6, True),
        (None, 100, True),
        (False, 100, True),
    ],
)
def test_a_pool_smaller_than_what_a_worker_runs_at_once_is_warned_of(
    database: dict[str, Any], pool: Any, concurrency: int, is_enough: bool
) -> None:
    database["OPTIONS"]["pool"] = pool
    with override_settings(PGQUEUE={"CONCURRENCY": concurrency, "ASYNC_THREADS": 2}):
        assert _ids() == ([] if is_enough else ["pgqueue.W012"])


def test_without_async_tasks_a_pool_need_hold_the_threads_only(
    database: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "names", lambda: ("tests.testapp.tasks.add",))
    database["OPTIONS"]["pool"] = {"max_size": 10}
    assert _ids() == []


@pytest.mark.parametrize("tasks", [{}, IMMEDIATE])
def test_tasks_that_name_no_alias_of_ours_are_warned_of(tasks: dict[str, Any]) -> None:
    with override_settings(TASKS=tasks):
        (message,) = checks.run_checks(tags=["pgqueue"], databases=[])
    assert (message.id, message.level) == ("pgqueue.W013", checks.WARNING)
    assert "pgqueue.backend.PGQueueBackend" in message.hint


def test_a_backend_that_cannot_be_imported_is_told_and_not_a_missing_one() -> None:
    with override_settings(TASKS={"default": {"BACKEND": "pgqueue.backends.PGQueueBackend", "QUEUES": []}}):
        (message,) = checks.run_checks(tags=["pgqueue"], databases=[])
    assert (message.id, message.level) == ("pgqueue.E026", checks.ERROR)
    assert "pgqueue.backends.PGQueueBackend" in message.msg


def test_one_alias_of_ours_is_enough() -> None:
    with override_settings(TASKS={**IMMEDIATE, "queue": {"BACKEND": "pgqueue.backend.PGQueueBackend"}}):
        assert _ids() == []


# -- for one queue, for one task ---------------------------------------------------------------------------

ADD = "tests.testapp.tasks.add"


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        (
            {"QUEUES": {"mail": {"MAX_ATTEMPT": 3}}},
            "PGQUEUE['QUEUES']['mail']['MAX_ATTEMPT'] is not a setting.",
            "Did you mean 'MAX_ATTEMPTS'?",
        ),
        (
            {"TASKS": {ADD: {"CONCURRENCY": 3}}},
            f"PGQUEUE['TASKS']['{ADD}']['CONCURRENCY'] holds for all jobs, and cannot be set for some.",
            f"Known settings are {', '.join(sorted(conf.OVERRIDABLE))}.",
        ),
        (
            {"QUEUES": {"mail": {"MAX_ATTEMPTS": 0}}},
            "PGQUEUE['QUEUES']['mail']['MAX_ATTEMPTS'] is 0.",
            "Give it a finite value greater than zero.",
        ),
        ({"QUEUES": {"mail": 3}}, "PGQUEUE['QUEUES']['mail'] is 3.", "Give it a dict of settings."),
        ({"TASKS": {3: {}}}, "PGQUEUE['TASKS']['3'] is no name.", "Use the name of a task."),
        ({"QUEUE": {}}, "PGQUEUE['QUEUE'] is not a setting.", "Did you mean 'QUEUES'?"),
    ],
)
def test_a_fault_of_an_override_is_told_with_its_place(given: dict[str, Any], message: str, hint: str) -> None:
    with override_settings(PGQUEUE=given):
        (told,) = _check()
        assert (told.msg, told.hint) == (message, hint)


def test_a_task_comes_before_its_queue_and_that_before_everybody() -> None:
    given = {
        "MAX_ATTEMPTS": 5,
        "QUEUES": {"mail": {"MAX_ATTEMPTS": 4, "BACKOFF_CAP_SECONDS": 9}},
        "TASKS": {ADD: {"MAX_ATTEMPTS": 3, "MAX_RUN_SECONDS": 1.5}},
    }
    with override_settings(PGQUEUE=given):
        assert conf.of(queue="default", task="other").max_attempts == 5
        assert conf.of(queue="mail", task="other").max_attempts == 4
        both = conf.of(queue="mail", task=ADD)
        assert (both.max_attempts, both.max_run_seconds, both.backoff_cap_seconds) == (3, 1.5, 9)
        assert _ids() == []
    assert conf.of(queue="mail", task=ADD) == conf.current()


def test_a_task_that_nobody_has_is_warned_of_with_the_nearest() -> None:
    with override_settings(PGQUEUE={"TASKS": {"tests.testapp.tasks.ad": {}, "mail": {}}}):
        near, far = checks.run_checks(tags=["pgqueue"], databases=[])
    assert (near.id, near.hint) == ("pgqueue.W014", f"Did you mean {ADD!r}?")
    assert (far.id, far.level) == ("pgqueue.W014", checks.WARNING)


def test_a_database_that_is_no_postgresql_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(connections["default"]), "vendor", "sqlite")
    (message,) = checks.run_checks(tags=["pgqueue"], databases=[])
    assert (message.id, message.level) == ("pgqueue.E011", checks.ERROR)
    assert "PGQUEUE['DATABASE']" in message.hint


def test_other_checks_wait_until_the_settings_can_be_read(database: dict[str, Any]) -> None:
    database["OPTIONS"]["pool"] = True
    with override_settings(PGQUEUE={"CONCURRENCY": 0}):
        assert _ids() == ["pgqueue.E010"]


def test_the_checks_connect_to_nothing() -> None:
    """Without the mark of a test that may use the database, a query would fail."""
    assert _ids() == []
