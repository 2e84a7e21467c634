"""Exceptions that cannot be looked at, and log handlers that raise: neither decides what becomes of a job."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.dispatch import Signal

from pgqueue.compat import Task, task_finished, task_started
from pgqueue.failures import FailureClass, classify, describe
from pgqueue.foreign import told
from pgqueue.logs import get_logger
from pgqueue.models import Attempt, Effect, Job
from tests.inline import row, work
from tests.testapp import contract_tasks, effect_tasks
from tests.testapp.contract_tasks import FOREIGN, ApiError, give_back
from tests.testapp.effect_tasks import Remote

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

TASKS = pytest.mark.parametrize(
    "task",
    [
        contract_tasks.fail_as_a_client,
        contract_tasks.fail_later_as_a_client,
        contract_tasks.fail_in_a_transaction_as_a_client,
        contract_tasks.fail_as_a_group,
    ],
    ids=["sync", "async", "transactional", "group"],
)
FAILURE_CLASSES = {"api": "system", "exiting": "content", "hidden": "content", "unhashable": "content"}


class Refusing(logging.Handler):
    """A project's handler that lets its own trouble out."""

    def __init__(self, level: int, error: type[BaseException]) -> None:
        super().__init__(level)
        self.error = error
        self.refused: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.refused.append(record.getMessage())
        raise self.error("the log server is away")


@pytest.fixture(params=[RuntimeError, SystemExit, KeyboardInterrupt])
def refusing(request: pytest.FixtureRequest) -> Iterator[Refusing]:
    """A handler that raises, on the root logger: Django's lines and ours. Ctrl-C is the main thread's."""
    handler = Refusing(logging.WARNING, request.param)
    logger = logging.getLogger("pgqueue")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


# -- exceptions --------------------------------------------------------------------------------------------


@TASKS
@pytest.mark.parametrize("kind", FOREIGN)
def test_an_exception_that_cannot_be_looked_at_ends_its_attempt_and_nothing_else(task: Any, kind: str) -> None:
    result = task.enqueue(kind)
    next_one = give_back.enqueue(1)
    assert work(concurrency=1) == 0
    job = row(result.id)
    expected = FAILURE_CLASSES[kind]
    assert (job.state, job.attempts) == ("retrying" if expected == "system" else "dead", 1)
    assert Attempt.objects.get().failure_class == expected
    assert row(next_one.id).state == "succeeded"


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_stored_is_the_tasks_own_error_and_where_it_was_raised(kind: str) -> None:
    contract_tasks.fail_as_a_client.enqueue(kind)
    assert work() == 0
    job, attempt = Job.objects.get(), Attempt.objects.get()
    expected = FOREIGN[kind]
    assert job.last_error_class == f"{expected.__module__}.{expected.__qualname__}"
    assert job.last_error == "the card was declined"
    assert "in fail_as_a_client" in attempt.traceback


def test_a_reader_that_raises_hides_no_other() -> None:
    class Mixed(Exception):
        headers = {"Retry-After": "7"}

        @property
        def retry_after(self) -> Any:
            raise SystemExit

    assert classify(Mixed()) is FailureClass.THROTTLED


def test_a_group_that_computes_its_members_is_read_from_what_it_was_made_of() -> None:
    class Computing(ExceptionGroup):
        @property
        def exceptions(self) -> Any:
            raise RuntimeError("no members")

    assert classify(Computing("both", [TypeError(), TypeError()])) is FailureClass.CONTENT


def test_a_text_of_a_strangers_class_is_stored_as_a_plain_one() -> None:
    class Wicked(str):
        def __getitem__(self, key: Any) -> Any:
            raise RuntimeError

        def translate(self, *args: Any) -> Any:
            raise RuntimeError

    class Error(Exception):
        def __str__(self) -> str:
            return Wicked("declined")

    description = describe(Error())
    assert (type(description.message), description.message.endswith("declined")) == (str, True)


def test_a_log_line_names_class_sqlstate_and_place_and_not_the_message() -> None:
    class PgError(Exception):
        sqlstate = "42P01"

    try:
        raise PgError("a secret")
    except PgError as error:
        line = told(error)
    assert line.startswith("error=PgError sqlstate=42P01 at=test_foreign_errors.py:")
    assert "secret" not in line
    for kind in FOREIGN.values():
        assert told(kind("a secret")) == f"error={kind.__name__}"


# -- effects -----------------------------------------------------------------------------------------------


class Answer(dict):
    """A client's answer that cannot be read."""

    def items(self) -> Any:
        raise ApiError("no items")


def _fail(value: Any) -> str:
    raise ApiError("no reference")


def _exit(value: Any) -> str:
    raise SystemExit


@pytest.mark.parametrize("task", [effect_tasks.undeclared, effect_tasks.undeclared_later], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("reference", "stored"),
    [
        (_fail, None),
        (_exit, None),
        (lambda value: "caf\udce9\0", "caf?"),
        (lambda value: FOREIGN["hidden"]("x"), None),
    ],
    ids=["raises", "exits", "half a surrogate pair", "unlookable"],
)
def test_a_reference_that_fails_does_not_lose_the_answer(task: Any, reference: Any, stored: str | None) -> None:
    remote = Remote()
    if task is effect_tasks.undeclared:
        effect_tasks.script["run"] = lambda context: context.effect("pay", remote, reference=reference)
    else:

        async def run(context: Any) -> Any:
            async def call(key: str) -> Any:
                return remote(key)

            return await context.aeffect("pay", call, reference=reference)

        effect_tasks.script["run"] = run
    result = task.enqueue()
    assert work() == 0
    effect = Effect.objects.get()
    assert (row(result.id).state, effect.result, effect.remote_reference) == ("succeeded", {"id": "r1"}, stored)


def test_an_answer_that_cannot_be_read_has_happened_all_the_same() -> None:
    remote = Remote()
    remote.answers = [Answer(id="r1")]
    effect_tasks.script["run"] = lambda context: context.effect("pay", remote)
    result = effect_tasks.undeclared.enqueue()
    assert work() == 0
    effect = Effect.objects.get()
    assert (row(result.id).state, str(effect.stage), effect.result) == ("dead", "result_known", None)
    assert row(result.id).last_error.startswith("result cannot be read: that raised ApiError")
    assert remote.asked == [f"job:{result.id}:pay"]


def test_a_call_that_raises_an_unlookable_error_leaves_its_outcome_unknown() -> None:
    remote = Remote()
    remote.answers = [ApiError("timed out")]
    effect_tasks.script["run"] = lambda context: context.effect("pay", remote)
    result = effect_tasks.manual.enqueue()
    assert work() == 0
    assert row(result.id).state == "unknown"


# -- log handlers ------------------------------------------------------------------------------------------


@TASKS
def test_a_log_handler_that_raises_changes_no_ending(task: Any, refusing: Refusing) -> None:
    result = task.enqueue("api")
    next_one = give_back.enqueue(1)
    assert work(concurrency=1) == 0
    assert (row(result.id).state, row(next_one.id).state) == ("retrying", "succeeded")
    assert any(line.startswith("job.failed") for line in refusing.refused)


def test_a_log_handler_that_raises_does_not_lose_an_answer(refusing: Refusing) -> None:
    effect_tasks.script["run"] = lambda context: context.effect("pay", Remote(), reference=_fail)
    result = effect_tasks.undeclared.enqueue()
    assert work() == 0
    assert row(result.id).state == "succeeded"
    assert any(line.startswith("effect.no_reference") for line in refusing.refused)


@pytest.mark.parametrize("name", ["pgqueue", ""], ids=["ours", "root"])
def test_a_worker_starts_and_ends_under_a_handler_that_raises_at_every_line(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    logger, handler = logging.getLogger(name), Refusing(logging.DEBUG, RuntimeError)
    caplog.set_level(logging.DEBUG, logger="pgqueue")
    logger.addHandler(handler)
    result = give_back.enqueue(1)
    failing = contract_tasks.fail_as_a_client.using(max_attempts=1).enqueue("api")
    try:
        assert work() == 0
    finally:
        logger.removeHandler(handler)
    assert (row(result.id).state, row(failing.id).state) == ("succeeded", "dead")
    assert any(line.startswith("worker.started") for line in handler.refused)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
@pytest.mark.parametrize("signal", [task_started, task_finished], ids=["started", "finished"])
def test_a_receiver_that_raises_changes_no_ending_even_where_logging_it_raises(
    signal: Signal, error: type[BaseException]
) -> None:
    handler = Refusing(logging.ERROR, RuntimeError)
    logging.getLogger("django.dispatch").addHandler(handler)

    def receive(**given: Any) -> None:
        raise error("a receiver")

    signal.connect(receive)
    try:
        result = give_back.enqueue(1)
        assert work() == 0
    finally:
        signal.disconnect(receive)
        logging.getLogger("django.dispatch").removeHandler(handler)
    assert row(result.id).state == "succeeded"
    assert row(result.id).attempts == 1


def test_an_enqueue_whose_log_line_is_refused_has_committed() -> None:
    handler = Refusing(logging.DEBUG, RuntimeError)
    logger = logging.getLogger(Task.__module__.removesuffix(".base"))
    before, dispatch = logger.level, logging.getLogger("django.dispatch")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    dispatch.addHandler(handler)
    try:
        result = give_back.enqueue(1)
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        dispatch.removeHandler(handler)
    assert handler.refused
    assert row(result.id).state == "pending"


# -- the logger itself -------------------------------------------------------------------------------------


def _refuse(*args: Any) -> Any:
    raise RuntimeError("not this line")


def test_a_line_that_no_handler_takes_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("pgqueue.test_logs")
    logger.addFilter(_refuse)
    get_logger("pgqueue.test_logs").warning("takeover job=%d", 7)
    logger.removeFilter(_refuse)
    assert capsys.readouterr().err == "takeover job=7 (a log handler raised RuntimeError)\n"


def test_a_line_is_named_after_the_code_that_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("pgqueue.test_logs").warning("takeover job=%d", 7)
    (record,) = caplog.records
    assert (record.filename, record.funcName) == (
        "test_foreign_errors.py",
        "test_a_line_is_named_after_the_code_that_logs_it",
    )


def test_ctrl_c_while_a_line_is_logged_is_the_processs_own() -> None:
    logger, handler = logging.getLogger("pgqueue.test_logs"), Refusing(logging.WARNING, KeyboardInterrupt)
    logger.addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            get_logger("pgqueue.test_logs").warning("takeover job=7")
        thread = threading.Thread(target=get_logger("pgqueue.test_logs").warning, args=("takeover job=8",))
        thread.start()
        thread.join()
    finally:
        logger.removeHandler(handler)
    assert handler.refused == ["takeover job=7", "takeover job=8"]
