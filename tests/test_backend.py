"""The contract of a Django Tasks backend, and `pgqueue.task` beside it."""

from __future__ import annotations

import copy
import datetime
import logging
import pickle
import sys
from collections.abc import Iterator
from typing import Any, Generic, get_type_hints

import django
import pytest
from asgiref.sync import async_to_sync
from django.core import checks
from django.db import DatabaseError, connection, transaction
from django.test import override_settings
from django.utils import timezone

from pgqueue import PGQueueBackend, PGQueueTask, task
from pgqueue.backend import OwnTask
from pgqueue.compat import (
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskContext,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from pgqueue.context import JobContext
from pgqueue.exceptions import UnknownTaskError
from pgqueue.models import Attempt, Job
from tests.inline import DUMMY, IMMEDIATE, row, work, work_through_retries
from tests.testapp import contract_tasks, plain_tasks
from tests.testapp.contract_tasks import double, give_back, nothing, with_options

NEVER = datetime.datetime.max.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=-12)))
LONG_AGO = datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=14)))
pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

OURS = {"default": {"BACKEND": "pgqueue.backend.PGQueueBackend", "QUEUES": []}}
NOT_OURS = [{}, IMMEDIATE, DUMMY, {"other": OURS["default"]}, {"default": {"BACKEND": "nowhere.Backend"}}]


# -- the backend -------------------------------------------------------------------------------------------


def test_the_backend_supports_everything_django_can_ask_for() -> None:
    backend = task_backends["default"]
    assert isinstance(backend, PGQueueBackend)
    assert (backend.supports_defer, backend.supports_priority) == (True, True)
    assert (backend.supports_async_task, backend.supports_get_result) == (True, True)
    assert backend.task_class is PGQueueTask


def local_function() -> Any:
    def inside() -> None: ...

    return inside


def local_lambda() -> Any:
    return lambda: None


def without_context() -> None: ...


def takes_nothing_named_context(other: Any) -> None: ...


NAIVE = datetime.datetime(2040, 1, 1, tzinfo=datetime.UTC).replace(tzinfo=None)
CONTEXT_MESSAGE = "Task takes context but does not have a first argument of 'context'."
PRIORITY_MESSAGE = "priority must be a whole number between -100 and 100."


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (local_lambda(), {}, "Task function must be defined at a module level."),
        (local_function(), {}, "Task function must be defined at a module level."),
        (print, {}, "Task function must be defined at a module level."),
        (without_context, {"takes_context": True}, CONTEXT_MESSAGE),
        (takes_nothing_named_context, {"takes_context": True}, CONTEXT_MESSAGE),
        (without_context, {"priority": 101}, PRIORITY_MESSAGE),
        (without_context, {"priority": -101}, PRIORITY_MESSAGE),
        (without_context, {"priority": 1.5}, PRIORITY_MESSAGE),
        (without_context, {"run_after": NAIVE}, "run_after must be an aware datetime."),
        # In this order: an earlier one is told first.
        (local_lambda(), {"takes_context": True, "priority": 101}, "Task function must be defined at a module level."),
        (without_context, {"takes_context": True, "priority": 101}, CONTEXT_MESSAGE),
        (without_context, {"priority": 101, "run_after": NAIVE}, PRIORITY_MESSAGE),
        (without_context, {"priority": 101, "recovery": "hope"}, PRIORITY_MESSAGE),
    ],
)
def test_a_task_that_cannot_work_is_refused_in_djangos_words(function: Any, options: Any, message: str) -> None:
    for make in (task_backends["default"].task_class, OwnTask):
        with pytest.raises(InvalidTask) as caught:
            make(func=function, **options)
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recovery": "hope"}, r"recovery must be one of transactional, .*, undeclared, not 'hope'\."),
        ({"max_attempts": 0}, r"max_attempts must be a whole number between 1 and 32000, not 0\."),
        ({"max_attempts": 32_001}, "max_attempts"),
        ({"max_attempts": 2.5}, "max_attempts"),
        ({"max_attempts": "3"}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        (
            {"backoff_seconds": 0},
            r"backoff_seconds must be a number of seconds above 0, .* \(a hundred years\), not 0\.",
        ),
        ({"backoff_seconds": -1}, "backoff_seconds"),
        ({"backoff_seconds": float("nan")}, "backoff_seconds"),
        ({"backoff_seconds": float("inf")}, "backoff_seconds"),
        ({"backoff_seconds": "2"}, "backoff_seconds"),
        ({"retry_on": ValueError}, "retry_on must be a tuple of exception classes"),
        ({"retry_on": (ValueError, "KeyError")}, "retry_on"),
        ({"bury_on": (ValueError(),)}, "bury_on"),
        ({"queue_name": ""}, "queue_name"),
        ({"tenant": "x" * 201}, "tenant"),
        ({"shard_key": 7}, "shard_key"),
        ({"operation_key": "a\0"}, "operation_key"),
        ({"tenant": "\ud800"}, r"tenant must be a text .* without control characters and half surrogate pairs, not"),
        ({"tenant": "a\nb"}, "without control characters"),
        ({"backoff_seconds": 1e18}, "a hundred years"),
        ({"run_after": NEVER}, "run_after must be a time within"),
        ({"run_after": LONG_AGO}, "the years 2 to 9998 in UTC"),
        ({"run_after": datetime.datetime.max.replace(tzinfo=datetime.UTC)}, "run_after"),
    ],
)
@pytest.mark.case("G03")
def test_an_option_that_cannot_work_is_refused_when_the_task_is_declared(options: Any, message: str) -> None:
    with pytest.raises(InvalidTask, match=message):
        task(**options)(without_context)


def test_an_option_that_does_not_exist_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="max_retries"):
        task(max_retries=3)(without_context)


def test_a_task_is_validated_again_when_it_is_enqueued() -> None:
    unchecked = copy.copy(double)
    object.__setattr__(unchecked, "priority", 1_000)
    with pytest.raises(InvalidTask, match="priority must be"):
        unchecked.enqueue(1)
    with pytest.raises(InvalidTask, match="priority must be"):
        async_to_sync(unchecked.aenqueue)(1)
    assert Job.objects.count() == 0


# -- pgqueue.task, whatever TASKS says ---------------------------------------------------------------------


@pytest.mark.parametrize("tasks", NOT_OURS)
def test_a_task_of_ours_is_enqueued_here_whatever_tasks_says(tasks: dict[str, Any]) -> None:
    with override_settings(TASKS=tasks):
        result = double.enqueue(1)
        assert row(result.id).state == "pending"
        assert double.get_result(result.id).args == [1]
        result.refresh()
        assert double.using(priority=5).get_backend().get_result(result.id).id == result.id


def test_a_task_of_ours_uses_the_alias_that_is_ours() -> None:
    with override_settings(TASKS={"default": {**OURS["default"], "OPTIONS": {"mark": 1}}}):
        assert double.get_backend() is task_backends["default"]


def test_a_task_by_djangos_decorator_goes_where_tasks_says() -> None:
    assert row(plain_tasks.give_back.enqueue(1).id).task == "tests.testapp.plain_tasks.give_back"
    with override_settings(TASKS=IMMEDIATE):
        assert plain_tasks.give_back.enqueue(1).return_value == 1
    with override_settings(TASKS=DUMMY):
        plain_tasks.give_back.enqueue(1)
        assert len(task_backends["default"].results) == 1
    assert Job.objects.count() == 1


def test_a_plain_task_object_without_our_options_can_be_enqueued() -> None:
    plain = Task(func=plain_tasks.give_back.func, priority=1, backend="default", queue_name="mail", run_after=None)
    job = row(plain.enqueue(1).id)
    assert (job.queue, job.priority, job.max_attempts, job.recovery) == ("mail", 1, 8, "undeclared")


def test_an_unknown_alias_is_an_error_for_djangos_tasks_only() -> None:
    with pytest.raises(InvalidTaskBackend):
        plain_tasks.give_back.using(backend="nowhere")
    assert double.using(backend="nowhere").enqueue(1).backend == "nowhere"


def test_using_keeps_what_it_is_not_given_and_changes_nothing_in_place() -> None:
    varied = with_options.using(priority=1)
    assert (varied.priority, varied.queue_name, varied.tenant, varied.max_attempts) == (1, "mail", "acme", 3)
    assert with_options.priority == 7
    assert isinstance(varied, OwnTask)
    assert varied != with_options
    assert varied.using(priority=7) == with_options


def test_a_task_can_be_called_in_place() -> None:
    assert double.call(2) == 4
    assert contract_tasks.double_later.call(2) == 4
    assert async_to_sync(double.acall)(2) == 4


def test_copies_of_tasks_and_results_are_as_good() -> None:
    for copied in (copy.copy(double), copy.deepcopy(double)):
        assert copied == double
        assert row(copied.enqueue(1).id).state == "pending"
    result = double.enqueue(1)
    copied = copy.deepcopy(result)
    assert copied == result
    copied.refresh()
    assert copied.status == TaskResultStatus.READY


@pytest.mark.skipif(django.VERSION < (6, 1), reason="Django's own tasks cannot be pickled before 6.1")
@pytest.mark.parametrize("pickled", [double, with_options, plain_tasks.give_back])
def test_tasks_and_results_can_be_pickled(pickled: Any) -> None:
    again = pickle.loads(pickle.dumps(pickled))
    assert again == pickled
    assert type(again) is type(pickled)
    result = pickled.enqueue()
    assert pickle.loads(pickle.dumps(result)) == result


def test_a_task_says_in_its_types_what_its_function_takes_and_gives() -> None:
    assert Generic in PGQueueTask.__mro__
    assert PGQueueTask[[int], int]
    assert get_type_hints(double.func) == {"number": int, "return": int}


# -- results -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "id",
    [
        *("", "x", "-1", "0", "+1", " 1", "1 ", "1\n", "1_0", "1e3", "0x1", "01", "1.0", "١٢", "²", "None"),
        *("9" * 19, str(2**63), "1" * 5_000, None, 1, b"1"),
    ],
)
def test_an_id_that_is_no_jobs_does_not_exist(id: Any) -> None:
    for get in (double.get_result, task_backends["default"].get_result, async_to_sync(double.aget_result)):
        with pytest.raises(TaskResultDoesNotExist):
            get(id)


def test_the_largest_id_is_looked_up() -> None:
    with pytest.raises(TaskResultDoesNotExist):
        double.get_result(str(2**63 - 1))


def test_the_result_of_another_task_does_not_match() -> None:
    result = double.enqueue(1)
    with pytest.raises(Exception, match=r"Task does not match \(received 'tests.testapp.contract_tasks.double'\)"):
        give_back.get_result(result.id)


def test_a_new_result_is_ready_and_equal_to_what_is_read_back() -> None:
    result = double.using(priority=4).enqueue(1)
    assert (result.status, result.is_finished, result.attempts) == (TaskResultStatus.READY, False, 0)
    assert (result.args, result.kwargs, result.errors, result.worker_ids) == ([1], {}, [], [])
    assert result.started_at is result.finished_at is result.last_attempted_at is None
    assert len(result.id) <= 64
    assert abs(timezone.now() - result.enqueued_at) < datetime.timedelta(minutes=1)
    with pytest.raises(ValueError, match="Task has not finished yet"):
        result.return_value  # noqa: B018
    assert _facts(double.get_result(result.id)) == _facts(result)


def _facts(result: TaskResult) -> dict[str, Any]:
    """Everything a result tells, but for the options of its task."""
    names = ("id", "status", "enqueued_at", "started_at", "finished_at", "last_attempted_at", "args", "kwargs")
    facts = {name: getattr(result, name) for name in (*names, "backend", "errors", "worker_ids", "attempts")}
    return facts | {"func": result.task.func, "value": result._return_value}


@committing
def test_a_successful_result_tells_value_times_and_worker() -> None:
    result = double.enqueue(21)
    assert work() == 0
    result.refresh()
    assert (result.status, result.return_value, result.is_finished) == (TaskResultStatus.SUCCESSFUL, 42, True)
    assert result.worker_ids == [str(row(result.id).settled_by)]
    assert result.attempts == 1
    assert result.errors == []
    assert result.enqueued_at < result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at


@committing
def test_a_result_of_none_is_a_success() -> None:
    result = nothing.enqueue()
    assert work() == 0
    assert nothing.get_result(result.id).return_value is None
    assert nothing.get_result(result.id).status == TaskResultStatus.SUCCESSFUL


@committing
@pytest.mark.case("G06")
def test_a_retried_result_tells_every_attempt() -> None:
    result = contract_tasks.succeed_on_attempt.enqueue(3)
    assert work() == 0
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.READY, 1, 1)
    assert result.finished_at is None
    first_start = result.started_at
    assert first_start is not None
    work_through_retries()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 3)
    assert [error.exception_class for error in result.errors] == [ConnectionError, ConnectionError]
    assert "ConnectionError: the remote is away" in result.errors[0].traceback
    assert result.started_at == first_start < result.last_attempted_at <= result.finished_at
    assert [attempt.outcome for attempt in Attempt.objects.order_by("id")] == ["failed", "failed", "succeeded"]


@committing
def test_a_dead_result_has_failed_with_its_errors() -> None:
    result = contract_tasks.fail_once.enqueue("no good")
    assert work() == 0
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == (TaskResultStatus.FAILED, True, 1)
    with pytest.raises(ValueError, match="Task failed"):
        result.return_value  # noqa: B018
    (error,) = result.errors
    assert error.exception_class is RuntimeError
    assert "no good" in error.traceback
    assert result.finished_at >= result.last_attempted_at == result.started_at


def _make(id: str, **fields: Any) -> None:
    Job.objects.filter(pk=id).update(**fields)


def test_a_running_result_tells_its_worker_and_when_it_was_claimed() -> None:
    result = double.enqueue(1)
    claimed_at = timezone.now()
    lease = {"worker_id": 7, "fence": 5, "lease_until": claimed_at, "claimed_at": claimed_at}
    _make(result.id, state="running", **lease)
    result.refresh()
    assert (result.status, result.worker_ids, result.attempts) == (TaskResultStatus.RUNNING, ["7"], 1)
    assert result.last_attempted_at == claimed_at
    earlier = claimed_at - datetime.timedelta(hours=1)
    _make(result.id, started_at=earlier, attempts=1)
    Attempt.objects.create(
        job_id=int(result.id), fence=4, worker_id=6, claimed_at=earlier, started_at=earlier, ended_at=earlier,
        number=1, outcome="failed", error_class="builtins.OSError", message="m",
    )  # fmt: skip
    result.refresh()
    assert (result.started_at, result.last_attempted_at) == (earlier, claimed_at)
    assert (result.worker_ids, [error.traceback for error in result.errors]) == (["6", "7"], ["m"])


def test_a_paused_result_is_ready_and_an_unknown_one_is_running() -> None:
    result = double.enqueue(1)
    _make(result.id, state="paused", held_from="pending")
    result.refresh()
    assert result.status == TaskResultStatus.READY
    _make(result.id, state="unknown", held_from=None, stage="outcome_unknown", unknown_effects=1)
    result.refresh()
    assert (result.status, result.is_finished) == (TaskResultStatus.RUNNING, False)
    with pytest.raises(ValueError, match="Task has not finished yet"):
        result.return_value  # noqa: B018


def test_a_cancelled_result_has_failed_by_an_error_that_says_so() -> None:
    result = double.enqueue(1)
    _make(result.id, state="cancelled", finished_at=timezone.now())
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 0)
    assert [error.exception_class.__name__ for error in result.errors] == ["JobCancelledError"]


@pytest.mark.case("I04")
def test_a_state_that_this_version_does_not_know_is_not_finished() -> None:
    result = double.enqueue(1)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgqueue_job DROP CONSTRAINT pgqueue_job_rules")
    _make(result.id, state="zzz")
    result.refresh()
    assert (result.status, result.is_finished) == (TaskResultStatus.RUNNING, False)


def test_the_result_of_a_task_that_this_process_does_not_know_is_not_called_missing() -> None:
    """Who hears that there is no job may enqueue it again."""
    result = double.enqueue(1)
    _make(result.id, task="gone.away")
    with pytest.raises(UnknownTaskError, match=r"'gone\.away'"):
        double.get_result(result.id)


# -- async -------------------------------------------------------------------------------------------------


@committing
def test_everything_can_be_awaited() -> None:
    async def go() -> TaskResult:
        enqueued = await double.aenqueue(4)
        found = await double.aget_result(enqueued.id)
        await found.arefresh()
        assert _facts(found) == _facts(enqueued)
        return found

    result = async_to_sync(go)()
    assert work() == 0
    result.refresh()
    assert result.return_value == 8


@committing
def test_async_tasks_run_with_and_without_context() -> None:
    results = [
        contract_tasks.double_later.enqueue(2),
        contract_tasks.attempt_later.enqueue(),
        plain_tasks.give_back_later.enqueue({"a": 1}),
    ]
    assert work() == 0
    for result in results:
        result.refresh()
    assert [result.return_value for result in results] == [4, 1, {"a": 1}]


# -- context -----------------------------------------------------------------------------------------------


@committing
def test_a_task_with_context_is_told_about_its_job() -> None:
    result = contract_tasks.describe_context.using(operation_key="order:7").enqueue()
    plain = contract_tasks.describe_context.enqueue()
    assert work() == 0
    job = row(result.id)
    value = contract_tasks.describe_context.get_result(result.id).return_value
    assert value == {
        "kind": "JobContext",
        "job_id": job.id,
        "result_id": result.id,
        "attempt": 1,
        "fence": job.fence,
        "operation_key": "order:7",
        "status": "RUNNING",
        "worker_ids": [str(job.settled_by)],
        "args": [],
    }
    other = contract_tasks.describe_context.get_result(plain.id).return_value
    assert other["operation_key"] == f"job:{plain.id}"
    assert other["fence"] != value["fence"]
    assert issubclass(JobContext, TaskContext)


@committing
def test_djangos_own_decorator_gives_a_context_too() -> None:
    result = plain_tasks.tell_attempt.enqueue()
    assert work() == 0
    assert plain_tasks.tell_attempt.get_result(result.id).return_value == 1


# -- signals -----------------------------------------------------------------------------------------------


@pytest.fixture
def heard() -> Iterator[list[tuple[str, Any]]]:
    """What the three signals said, in order: name and task result."""
    said: list[tuple[str, Any]] = []
    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    receivers = []
    for name, signal in signals.items():

        def receive(sender: Any, task_result: TaskResult, name: str = name, **kwargs: Any) -> None:
            assert sender is PGQueueBackend
            said.append((name, task_result))

        signal.connect(receive)
        receivers.append((signal, receive))
    yield said
    for signal, receive in receivers:
        signal.disconnect(receive)


@committing
def test_a_job_is_enqueued_started_and_finished_once(heard: list[tuple[str, Any]]) -> None:
    result = double.enqueue(21)
    assert work() == 0
    assert [name for name, _ in heard] == ["enqueued", "started", "finished"]
    (_, enqueued), (_, started), (_, finished) = heard
    assert enqueued.status == TaskResultStatus.READY
    assert (started.status, started.worker_ids) == (TaskResultStatus.RUNNING, finished.worker_ids)
    assert started.started_at is not None
    assert _facts(finished) == _facts(double.get_result(result.id))


@committing
def test_every_final_signal_tells_what_the_database_tells(heard: list[tuple[str, Any]]) -> None:
    results = [
        contract_tasks.fail_once.enqueue(),
        contract_tasks.give_up.enqueue(),
        contract_tasks.succeed_on_attempt.enqueue(2),
        contract_tasks.return_unserializable.enqueue(),
        nothing.using(tenant="t").enqueue(),
    ]
    work_through_retries()
    told = {finished.id: finished for name, finished in heard if name == "finished"}
    assert len([name for name, _ in heard if name == "finished"]) == len(told) == len(results)
    for result in results:
        result.refresh()
        assert _facts(told[result.id]) == _facts(result)
    assert [name for name, _ in heard].count("started") == 6


@committing
def test_a_job_that_was_stopped_is_told_as_cancelled(heard: list[tuple[str, Any]]) -> None:
    result = contract_tasks.fail_three_times.enqueue()
    _make(result.id, stop_requested_at=timezone.now())
    assert work() == 0
    assert row(result.id).state == "cancelled"
    (finished,) = [told for name, told in heard if name == "finished"]
    result.refresh()
    assert _facts(finished) == _facts(result)
    assert [error.exception_class.__name__ for error in finished.errors] == ["RuntimeError", "JobCancelledError"]


@committing
def test_the_enqueued_signal_is_sent_in_the_callers_transaction() -> None:
    seen: list[tuple[bool, bool]] = []

    def receive(sender: Any, task_result: TaskResult, **kwargs: Any) -> None:
        seen.append((connection.in_atomic_block, Job.objects.filter(pk=task_result.id).exists()))

    task_enqueued.connect(receive)
    try:
        with transaction.atomic():
            double.enqueue(1)
            assert seen == [(True, True)]
    finally:
        task_enqueued.disconnect(receive)


@committing
def test_a_receiver_that_raises_does_not_make_a_committed_enqueue_look_failed() -> None:
    def fail(**kwargs: Any) -> None:
        raise ZeroDivisionError

    task_enqueued.connect(fail)
    try:
        result = double.enqueue(1)
    finally:
        task_enqueued.disconnect(fail)
    assert row(result.id).state == "pending"


@committing
def test_the_finished_signal_is_sent_after_the_ending_is_in_the_database() -> None:
    seen: list[str] = []

    def receive(sender: Any, task_result: TaskResult, **kwargs: Any) -> None:
        seen.append(Job.objects.get(pk=task_result.id).state)

    task_finished.connect(receive)
    try:
        double.enqueue(1)
        contract_tasks.fail_once.enqueue()
        assert work() == 0
    finally:
        task_finished.disconnect(receive)
    assert sorted(seen) == ["dead", "succeeded"]


@committing
def test_receivers_of_a_failed_job_find_its_exception_under_way() -> None:
    """Error monitors read `sys.exc_info()` there, and Django's own receiver logs it."""
    seen: list[BaseException | None] = []

    def receive(sender: Any, task_result: TaskResult, **kwargs: Any) -> None:
        seen.append(sys.exc_info()[1])

    task_finished.connect(receive)
    try:
        double.enqueue(1)
        contract_tasks.fail_once.enqueue()
        assert work() == 0
    finally:
        task_finished.disconnect(receive)
    [failure] = [error for error in seen if error is not None]
    assert type(failure) is RuntimeError
    assert len(seen) == 2


@committing
@pytest.mark.parametrize("signal", [task_started, task_finished], ids=["started", "finished"])
def test_a_receiver_that_raises_changes_nothing(signal: Any) -> None:
    heard: list[str] = []

    def fail(**kwargs: Any) -> None:
        raise ZeroDivisionError

    def hear(task_result: TaskResult, **kwargs: Any) -> None:
        heard.append(task_result.id)

    signal.connect(fail)
    signal.connect(hear)
    try:
        results = [double.enqueue(number) for number in range(3)]
        assert work() == 0
    finally:
        signal.disconnect(fail)
        signal.disconnect(hear)
    assert sorted(heard) == sorted(result.id for result in results)
    assert {row(result.id).state for result in results} == {"succeeded"}


@committing
def test_a_receiver_that_breaks_its_transaction_does_not_reach_the_next_task() -> None:
    def leave_open(**kwargs: Any) -> None:
        contract_tasks.MISDEEDS["broken_transaction"]()
        raise DatabaseError

    task_finished.connect(leave_open)
    try:
        results = [contract_tasks.count_jobs.enqueue() for _ in range(5)]
        assert work(concurrency=1) == 0
    finally:
        task_finished.disconnect(leave_open)
    assert {contract_tasks.count_jobs.get_result(result.id).return_value for result in results} == {5}


def test_a_spent_key_sends_no_signal(heard: list[tuple[str, Any]]) -> None:
    double.using(operation_key="k").enqueue(1)
    double.using(operation_key="k").enqueue(1)
    assert [name for name, _ in heard] == ["enqueued"]


@committing
def test_djangos_log_lines_name_the_job(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=Task.__module__.removesuffix(".base"))
    result = double.enqueue(1)
    failed = contract_tasks.fail_once.enqueue()
    assert work() == 0
    told = [(record.levelname, record.getMessage()) for record in caplog.records if "Task id=" in record.msg]
    for level, id, state in [("INFO", result.id, "SUCCESSFUL"), ("ERROR", failed.id, "FAILED")]:
        assert [
            found for found, message in told if message.startswith(f"Task id={id} ") and message.endswith(state)
        ] == [level]


# -- checks ------------------------------------------------------------------------------------------------


def test_the_backend_finds_nothing_wrong_where_the_app_is_installed() -> None:
    assert list(task_backends["default"].check()) == []


def test_the_backend_says_when_the_app_is_missing(settings: Any) -> None:
    settings.INSTALLED_APPS = [app for app in settings.INSTALLED_APPS if app != "pgqueue"]
    (message,) = task_backends["default"].check()
    assert (message.id, message.level) == ("pgqueue.E001", checks.ERROR)
    assert "INSTALLED_APPS" in message.msg
