"""What Django's own tests, those of its backport and those of its database backend ask of a backend, said anew.

What is not here stands where it belongs: results, signals and async in `test_backend`, the caller's transaction in
`test_enqueue`, the worker's options in `test_worker_inline`, signals and kills in `faults`, locked rows in `races`.
"""

from __future__ import annotations

import datetime
import logging
from typing import Any

import django
import pytest
from asgiref.sync import async_to_sync
from django.core import checks
from django.db import transaction
from django.test import override_settings
from django.utils import timezone
from django.utils.module_loading import import_string

import pgqueue
from pgqueue import PGQueueBackend, PGQueueTask
from pgqueue.compat import (
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_finished,
)
from pgqueue.exceptions import ResultError
from pgqueue.models import Job
from pgqueue.operations import Actor, act
from pgqueue.states import Outcome, State
from tests.factories import JobFactory
from tests.inline import row, work, work_through_retries
from tests.testapp import contract_tasks, plain_tasks
from tests.testapp.contract_tasks import double, give_back

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

OURS = {"default": {"BACKEND": "pgqueue.backend.PGQueueBackend", "QUEUES": []}}
TaskResultMismatch = import_string(Task.__module__.removesuffix("base") + "exceptions.TaskResultMismatch")
LOGGER = Task.__module__.removesuffix(".base")
SOON = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)

both_kinds = pytest.mark.parametrize("task", [give_back, plain_tasks.give_back], ids=["ours", "Django's"])


# -- test_tasks ---------------------------------------------------------------------------------------------


@both_kinds
@pytest.mark.parametrize(
    ("option", "value", "column"),
    [("priority", 7, "priority"), ("queue_name", "mail", "queue"), ("run_after", SOON, "run_at")],
)
def test_using_changes_one_option_of_a_new_task(task: Any, option: str, value: Any, column: str) -> None:
    varied = task.using(**{option: value})
    assert varied is not task
    assert (getattr(task, option), getattr(varied, option)) != (value, getattr(task, option))
    assert getattr(row(varied.enqueue(1).id), column) == value


@both_kinds
def test_using_can_be_chained(task: Any) -> None:
    varied = task.using(priority=7).using(queue_name="mail").using(run_after=SOON)
    assert (varied.priority, varied.queue_name, varied.run_after) == (7, "mail", SOON)
    assert (varied.func, varied.name, varied.module_path) == (task.func, task.name, task.module_path)
    assert type(varied) is type(task)


def test_an_alias_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidTaskBackend) as caught:
        plain_tasks.give_back.using(backend="unknown")
    assert str(caught.value) == "The connection 'unknown' doesn't exist."


def test_a_backend_that_cannot_be_imported_is_named() -> None:
    with override_settings(TASKS={"default": {"BACKEND": "does.not.exist"}}):
        with pytest.raises(InvalidTaskBackend) as caught:
            plain_tasks.give_back.get_backend()
        assert str(caught.value) == "Could not find backend 'does.not.exist': No module named 'does'"


@pytest.mark.parametrize(("queues", "good", "bad"), [(["mail"], "mail", "sms"), (None, "default", "mail")])
def test_a_queue_that_the_alias_does_not_list_is_refused(queues: Any, good: str, bad: str) -> None:
    listed = {"BACKEND": OURS["default"]["BACKEND"], **({} if queues is None else {"QUEUES": queues})}
    with override_settings(TASKS={"default": listed}):
        assert row(plain_tasks.give_back.using(queue_name=good).enqueue(1).id).queue == good
        with pytest.raises(InvalidTask) as caught:
            plain_tasks.give_back.using(queue_name=bad)
    assert str(caught.value).startswith(f"Queue '{bad}' is not valid for backend.")


@pytest.mark.parametrize("task", [double, plain_tasks.give_back], ids=["ours", "Django's"])
def test_the_result_of_another_task_is_a_mismatch_in_both_worlds(task: Any) -> None:
    result = contract_tasks.nothing.enqueue()
    for get in (task.get_result, async_to_sync(task.aget_result)):
        with pytest.raises(TaskResultMismatch, match=r"Task does not match \(received '.*contract_tasks.nothing'\)"):
            get(result.id)


@pytest.mark.parametrize("id", ["123", "f2b1c5a0-9b1e-4a57-8f7c-0d2f6b6a1c11", ""])
def test_a_result_that_is_not_there_is_named_by_its_id(id: str) -> None:
    for get in (give_back.get_result, plain_tasks.give_back.get_result, async_to_sync(give_back.aget_result)):
        with pytest.raises(TaskResultDoesNotExist) as caught:
            get(id)
        assert caught.value.args == (id,)


@pytest.mark.parametrize(
    ("path", "error"),
    [("builtins.print", ValueError), ("tests.inline.work", ValueError), ("nowhere.at.all", ImportError)],
)
def test_an_error_that_names_no_exception_says_so(path: str, error: type[Exception]) -> None:
    """Attempts keep the path of what was raised; the class may be gone when somebody asks."""
    with pytest.raises(error):
        TaskError(exception_class_path=path, traceback="").exception_class  # noqa: B018


def test_a_task_knows_its_name_its_path_and_its_backend() -> None:
    assert (double.name, double.module_path) == ("double", "tests.testapp.contract_tasks.double")
    assert double.get_backend() is task_backends["default"]


# -- tests of backends ---------------------------------------------------------------------------------------


@both_kinds
def test_an_enqueued_task_gives_a_ready_result(task: Any) -> None:
    for result in (task.enqueue([1]), async_to_sync(task.aenqueue)([1])):
        assert (result.status, result.is_finished, result.attempts) == (TaskResultStatus.READY, False, 0)
        assert (result.task, result.args, result.kwargs) == (task, [[1]], {})
        assert (result.backend, result.errors, result.worker_ids) == ("default", [], [])
        assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)


@both_kinds
def test_arguments_are_what_json_makes_of_them(task: Any) -> None:
    result = task.enqueue((1, [2, (3,)]))
    assert result.args == [[1, [2, [3]]]]
    assert task.get_result(result.id).args == result.args


@committing
@both_kinds
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_refreshed_result_is_as_new_as_one_read_anew(task: Any, is_async: bool) -> None:
    result = task.enqueue(5)
    assert work() == 0
    assert result.status == TaskResultStatus.READY
    async_to_sync(result.arefresh)() if is_async else result.refresh()
    read = async_to_sync(task.aget_result)(result.id) if is_async else task.get_result(result.id)
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, 5)
    for name in ("status", "errors", "enqueued_at", "started_at", "finished_at", "last_attempted_at", "worker_ids"):
        assert getattr(result, name) == getattr(read, name)


def test_results_and_errors_cannot_be_changed() -> None:
    result = double.enqueue(1)
    with pytest.raises(AttributeError):
        result.status = TaskResultStatus.FAILED  # type: ignore[misc]
    assert isinstance(result, TaskResult)


def test_the_enqueue_is_logged_in_djangos_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger=LOGGER)
    result = double.enqueue(1)
    (record,) = [record for record in caplog.records if record.name == LOGGER]
    assert record.levelname == "DEBUG"
    assert record.getMessage() == f"Task id={result.id} path={double.module_path} enqueued backend=default"


@committing
def test_an_exception_that_holds_another_is_told_by_its_own_class() -> None:
    result = contract_tasks.fail_within_a_failure.enqueue()
    assert work() == 0
    result.refresh()
    (error,) = result.errors
    assert (result.status, error.exception_class) == (TaskResultStatus.FAILED, ValueError)
    assert "KeyError" in error.traceback
    assert "ValueError" in error.traceback


@committing
def test_a_result_that_json_cannot_hold_fails_the_task() -> None:
    result = contract_tasks.return_unserializable.enqueue()
    assert work() == 0
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[-1].exception_class is ResultError


@committing
def test_the_worker_counts_attempts_as_worker_ids() -> None:
    result = contract_tasks.succeed_on_attempt.enqueue(2)
    work_through_retries()
    result.refresh()
    assert result.attempts == len(result.worker_ids) == 2


def test_every_member_of_djangos_backend_is_ours_too() -> None:
    base = PGQueueBackend.__mro__[1]
    assert all(hasattr(PGQueueBackend, name) for name in vars(base))
    assert PGQueueBackend.__abstractmethods__ == frozenset()
    backend = PGQueueBackend("other", {"QUEUES": ["a", "b"], "OPTIONS": {}})
    assert (backend.alias, backend.queues, backend.options) == ("other", {"a", "b"}, {})


# -- test_custom_backend: options of our own -------------------------------------------------------------------


@pytest.mark.skipif((6, 0) <= django.VERSION < (6, 1), reason="6.0 passes its decorator's four options only")
def test_djangos_decorator_takes_our_options() -> None:
    made = plain_tasks.task(max_attempts=7, recovery="idempotent")(plain_tasks.give_back.func)
    assert isinstance(made, PGQueueTask)
    job = row(made.using(tenant="acme").enqueue(1).id)
    assert (job.max_attempts, job.recovery, job.tenant) == (7, "idempotent", "acme")


def test_an_option_that_nobody_has_is_a_type_error() -> None:
    for decorate in (plain_tasks.task, pgqueue.task):
        with pytest.raises(TypeError):
            decorate(unknown_param=1)(plain_tasks.give_back.func)


def test_settings_give_a_plain_task_what_its_decorator_cannot() -> None:
    name = plain_tasks.give_back.module_path
    with override_settings(PGQUEUE={"TASKS": {name: {"MAX_ATTEMPTS": 3}}, "QUEUES": {"mail": {"MAX_ATTEMPTS": 4}}}):
        assert row(plain_tasks.give_back.using(queue_name="mail").enqueue(1).id).max_attempts == 3
        assert row(double.using(queue_name="mail").enqueue(1).id).max_attempts == 4
        assert row(double.using(queue_name="mail", max_attempts=2).enqueue(1).id).max_attempts == 2


@committing
def test_settings_of_a_queue_hold_for_its_jobs_and_no_others() -> None:
    """What the worker reads: the size of a result, the delay after a failure, the longest run, the losses."""
    mail = {"MAX_RESULT_BYTES": 10, "BACKOFF_BASE_SECONDS": 3000, "MAX_LEASE_LOSSES": 1, "MAX_RUN_SECONDS": 1}
    hold, nothing = contract_tasks.hold_connection, contract_tasks.nothing
    tasks = [give_back.bind("x" * 50), hold.bind(1.5)]
    queues = ("mail", "default")
    lost = [JobFactory(expired=True, alone=True, queue=queue, task=nothing.module_path) for queue in queues]
    with override_settings(PGQUEUE={"QUEUES": {"mail": mail}}):
        jobs = {queue: [call.task.using(queue_name=queue).enqueue(*call.args).id for call in tasks] for queue in queues}
        assert work(concurrency=4) == 0
    (large, slow), (other_large, other_slow) = ([row(id) for id in ids] for ids in jobs.values())
    assert (large.state, other_large.state) == ("dead", "succeeded")
    assert (slow.last_error_class, other_slow.state) == ("pgqueue.exceptions.JobTimeoutError", "succeeded")
    assert slow.run_at - timezone.now() > datetime.timedelta(seconds=1000)
    assert [row(job.id).state == "dead" for job in lost] == [True, False]


# -- settings of TASKS -----------------------------------------------------------------------------------------


def test_options_in_tasks_are_refused_by_a_check() -> None:
    """`id_function` is an option of another backend: ids here are the database's."""
    with override_settings(TASKS={"default": {**OURS["default"], "OPTIONS": {"id_function": "uuid.uuid4"}}}):
        (message,) = [message for message in checks.run_checks() if message.id == "pgqueue.E002"]
    assert (message.level, "id_function" in message.msg) == (checks.ERROR, True)
    assert "PGQUEUE" in message.hint


# -- django-tasks-db -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["nowhere.task", "tests.inline.work", "tests.testapp.contract_tasks.gone", "os.system"]
)
@committing
def test_a_path_that_is_no_task_is_never_run(name: str) -> None:
    """Another worker may know it: the job waits, and is run by none that does not."""
    result = double.enqueue(1)
    Job.objects.filter(pk=result.id).update(task=name)
    after = double.enqueue(2)
    assert work() == 0
    assert [row(result.id).state, row(after.id).state] == ["pending", "succeeded"]


@committing
def test_a_job_for_later_waits_and_priority_decides_among_what_is_due() -> None:
    later = contract_tasks.record.using(run_after=timezone.now() + datetime.timedelta(days=1), priority=100)
    contract_tasks.recorded.clear()
    results = [
        later.enqueue(0),
        contract_tasks.record.enqueue(1),
        contract_tasks.record.using(priority=5).enqueue(2),
        contract_tasks.record.using(run_after=timezone.now() - datetime.timedelta(days=1), priority=3).enqueue(3),
        contract_tasks.record.using(priority=-5).enqueue(4),
    ]
    assert work(concurrency=1) == 0
    assert contract_tasks.recorded == [2, 3, 1, 4]
    assert row(results[0].id).state == "pending"


@committing
def test_an_enqueue_does_not_wait_for_the_commit_and_nobody_else_sees_it() -> None:
    with transaction.atomic():
        result = double.enqueue(1)
        assert double.get_result(result.id).status == TaskResultStatus.READY
        assert work() == 0
        assert double.get_result(result.id).status == TaskResultStatus.READY
    assert work() == 0
    assert double.get_result(result.id).status == TaskResultStatus.SUCCESSFUL


# -- task_finished for what its own run did not end --------------------------------------------------------------


@pytest.fixture
def finished() -> Any:
    """The results that `task_finished` told, in order."""
    told: list[TaskResult] = []

    def receive(sender: Any, task_result: TaskResult, **kwargs: Any) -> None:
        assert sender is PGQueueBackend
        told.append(task_result)

    task_finished.connect(receive)
    yield told
    task_finished.disconnect(receive)


@committing
@pytest.mark.parametrize(("verb", "state"), [("cancel", State.CANCELLED), ("give_up", State.DEAD)])
def test_a_job_that_an_operator_ends_is_told_once(finished: list[TaskResult], verb: str, state: State) -> None:
    result = double.enqueue(1)
    asked: dict[str, Any] = {"version_seen": 1, "actor": Actor(None, "ops"), "reason": "asked"}
    assert act(verb, result.id, **asked).outcome == Outcome.APPLIED
    assert act(verb, result.id, **asked).outcome == Outcome.CHANGED
    (told,) = finished
    result.refresh()
    assert (row(result.id).state, told.id, told.status) == (state, result.id, TaskResultStatus.FAILED)
    assert told.errors == result.errors


@committing
def test_a_verb_that_ends_nothing_is_not_told(finished: list[TaskResult]) -> None:
    result = double.enqueue(1)
    assert act("hold", result.id, version_seen=1, actor=Actor(None, "ops"), reason="asked").outcome == Outcome.APPLIED
    assert finished == []


@committing
def test_a_receiver_that_raises_does_not_reach_the_operator() -> None:
    def fail(**kwargs: Any) -> None:
        raise ZeroDivisionError

    task_finished.connect(fail)
    try:
        result = double.enqueue(1)
        action = act("cancel", result.id, version_seen=1, actor=Actor(None, "ops"), reason="asked")
    finally:
        task_finished.disconnect(fail)
    assert (action.outcome, row(result.id).state) == (Outcome.APPLIED, "cancelled")


@committing
def test_a_job_that_a_takeover_ends_is_told_once(finished: list[TaskResult]) -> None:
    """It was asked to stop, then its worker was lost."""
    job = JobFactory(expired=True, stop_requested=True, task=double.module_path)
    assert work() == 0
    assert row(job.id).state == "cancelled"
    (told,) = finished
    assert (told.id, told.status) == (str(job.id), TaskResultStatus.FAILED)
    assert [error.exception_class.__name__ for error in told.errors] == ["JobLostError", "JobCancelledError"]


# -- test_compat: the backport beside Django's own ---------------------------------------------------------------


@committing
@pytest.mark.skipif(django.VERSION < (6, 0), reason="there the backport is all there is")
def test_tasks_of_the_backport_run_here_beside_djangos_own() -> None:
    """A project that moves to Django 6 has both for a while; both read `TASKS`."""
    backport = pytest.importorskip("django_tasks", reason="make test-matrix installs it beside Django 6")
    base = pytest.importorskip("django_tasks.base")
    fields = {"priority": 3, "backend": "default", "queue_name": "default", "run_after": None}
    tasks = [backport.task(plain_tasks.give_back.func), base.Task(func=plain_tasks.give_back.func, **fields)]
    results = [task.enqueue(number) for number, task in enumerate(tasks)]
    assert isinstance(backport.task_backends["default"], PGQueueBackend)
    assert work() == 0
    for number, task in enumerate(tasks):
        assert task.get_result(results[number].id).return_value == number
        assert plain_tasks.give_back.get_result(results[number].id).return_value == number
