"""What error trackers hear of failed jobs: they read log records at ERROR, and the exception under way."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator
from typing import Any

import pytest

from pgqueue.compat import Task, TaskResult, TaskResultStatus, task_finished
from pgqueue.exceptions import AttemptFailedError
from pgqueue.operations import Actor, act
from pgqueue.protocol.settling import Ending, EndingKind, Written
from pgqueue.reporting import HIDDEN
from pgqueue.signalling import send_finished
from pgqueue.states import Outcome, State
from pgqueue.worker.finishing import Finished
from tests.factories import JobFactory, from_now
from tests.inline import row, work, work_through_retries
from tests.testapp import contract_tasks, effect_tasks
from tests.testapp.contract_tasks import ApiError, double

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

ARGUMENT = "an-argument-of-the-task"
DJANGOS_LOGGER = Task.__module__.removesuffix(".base")


class Tracker(logging.Handler):
    """Takes every record at ERROR as an event, as trackers do, with the frames of its exception and their variables."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.types: list[str] = []
        self.frames: list[list[str]] = []
        self.modules: set[str] = set()
        self.variables: list[str] = []
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        kind, error, frames = record.exc_info or (None, None, None)
        self.types.append("-" if kind is None else f"{kind.__module__}.{kind.__qualname__}")
        self.texts.append(str(error))
        steps = list(traceback.walk_tb(frames))
        self.frames.append([frame.f_code.co_name for frame, _ in steps])
        self.modules |= {frame.f_globals["__name__"] for frame, _ in steps}
        self.variables += [repr(value) for frame, _ in steps for value in frame.f_locals.values()]


@pytest.fixture
def tracker() -> Iterator[Tracker]:
    tracker = Tracker()
    logging.getLogger().addHandler(tracker)
    yield tracker
    logging.getLogger().removeHandler(tracker)


@pytest.mark.parametrize(
    ("task", "frames"),
    [
        (contract_tasks.fail_deep, ["fail_deep", "_fail_deeper"]),
        (contract_tasks.fail_deep_later, ["fail_deep_later", "_fail_deeper"]),
        (contract_tasks.fail_deep_in_a_transaction, ["fail_deep_in_a_transaction", "_fail_deeper"]),
        (contract_tasks.fail_deep_in_an_effect, ["fail_deep_in_an_effect", "<lambda>", "_fail_deeper"]),
    ],
    ids=["sync", "async", "transactional", "in an effect"],
)
def test_a_dead_job_is_one_event_with_the_tasks_own_exception(tracker: Tracker, task: Any, frames: list[str]) -> None:
    result = task.enqueue(ARGUMENT)
    work_through_retries()
    assert row(result.id).state == "dead"
    assert tracker.types == ["builtins.ZeroDivisionError"]
    assert tracker.frames == [frames]
    assert not {module for module in tracker.modules if module.startswith(HIDDEN)}


def test_an_exception_that_is_raised_anew_has_the_frames_of_its_cause_too() -> None:
    found: list[BaseException | None] = []

    def receive(**given: Any) -> None:
        found.append(sys.exc_info()[1])

    task_finished.connect(receive)
    try:
        contract_tasks.fail_from.enqueue(ARGUMENT)
        assert work() == 0
    finally:
        task_finished.disconnect(receive)
    (error,) = found
    assert isinstance(error, LookupError)
    assert isinstance(error.__cause__, ZeroDivisionError)
    for one, name in [(error, "fail_from"), (error.__cause__, "_fail_deeper")]:
        names = [frame.f_code.co_name for frame, _ in traceback.walk_tb(one.__traceback__)]
        assert (names[0], names[-1]) == ("fail_from", name)


def test_a_text_with_a_secret_is_replaced_and_the_class_keeps_its_name(tracker: Tracker) -> None:
    contract_tasks.fail_with_secret.enqueue(token=contract_tasks.SECRET)
    work_through_retries()
    assert tracker.types == ["builtins.ConnectionError"]
    assert tracker.frames == [["fail_with_secret"]]
    assert tracker.texts[0].startswith("login failed: password=[redacted]")


def test_an_exception_that_cannot_be_formatted_is_told_with_its_name_and_frames(tracker: Tracker) -> None:
    contract_tasks.fail_as_a_client.using(max_attempts=1).enqueue("api")
    assert work() == 0
    assert tracker.types == [f"{ApiError.__module__}.ApiError"]
    assert (tracker.frames, tracker.texts) == ([["fail_as_a_client"]], ["the card was declined"])


def test_a_job_that_died_with_its_workers_is_one_event_named_after_that(tracker: Tracker) -> None:
    job = JobFactory(expired=True, task=double.module_path, lane=2, lease_losses=99)
    assert work() == 0
    assert row(job.id).state == "dead"
    assert tracker.types == ["pgqueue.exceptions.JobLostError"]
    assert tracker.frames == [[]]


@pytest.mark.parametrize("verb", ["cancel", "give_up"])
def test_what_an_operator_ends_is_no_error(tracker: Tracker, caplog: pytest.LogCaptureFixture, verb: str) -> None:
    caplog.set_level(logging.INFO, logger=DJANGOS_LOGGER)
    heard: list[TaskResult] = []

    def receive(task_result: TaskResult, **given: Any) -> None:
        heard.append(task_result)

    task_finished.connect(receive)
    try:
        result = double.enqueue(1)
        action = act(verb, result.id, version_seen=1, actor=Actor(None, "ops"), reason="asked")
    finally:
        task_finished.disconnect(receive)
    assert action.outcome == Outcome.APPLIED
    assert [one.id for one in heard] == [result.id]
    assert tracker.types == []
    (line,) = (record for record in caplog.records if record.getMessage().endswith("state=FAILED"))
    assert (line.levelname, line.exc_info) == ("INFO", None)


def test_a_failed_result_without_an_error_is_told_with_an_exception_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    result = double.enqueue(1)
    object.__setattr__(result, "status", TaskResultStatus.FAILED)
    send_finished(type(double.get_backend()), result)
    (line,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert "NoneType: None" not in caplog.text
    assert line.exc_info is not None
    assert line.exc_info[0] is not None
    assert issubclass(line.exc_info[0], AttemptFailedError)


def test_a_completion_that_the_database_refused_is_read_before_it_is_told() -> None:
    ending = Ending(EndingKind.COMPLETE, 1, 1)
    lease = type("Lease", (), {"version": 2})()
    assert Finished(lease, ending, Written(State.SUCCEEDED, from_now(0))).is_whole_story()
    assert not Finished(lease, ending, Written(State.DEAD, from_now(0))).is_whole_story()


def test_a_context_does_not_show_the_arguments() -> None:
    effect_tasks.script[ARGUMENT] = repr
    result = effect_tasks.undeclared.enqueue(ARGUMENT)
    assert work() == 0
    shown = effect_tasks.undeclared.get_result(result.id).return_value
    assert shown == f"<JobContext job={result.id} attempt=1 fence={shown.rpartition('=')[2]}"


def test_retries_are_no_events(tracker: Tracker) -> None:
    effect_tasks.script["run"] = lambda context: 1 / 0
    effect_tasks.undeclared.enqueue()
    assert work(max_jobs=1) == 0
    assert tracker.types == []
