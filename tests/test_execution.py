"""One run of a job: what it returns, what it raises, and what is written and logged of either."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test import override_settings

from pgqueue import execution, registry
from pgqueue.compat import Task, TaskResultStatus
from pgqueue.failures import FailureClass
from pgqueue.holding import Held
from pgqueue.models import Attempt, Job, JobResult, Queue
from pgqueue.protocol.claiming import Lease
from pgqueue.protocol.settling import Ending, EndingKind
from tests.inline import row, work, work_through_retries
from tests.testapp import contract_tasks
from tests.testapp.contract_tasks import KINDS, SECRET, give_back

DJANGOS_LOGGER = Task.__module__.removesuffix(".base")

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])


def _held(task: Any, *, args: str | None = None, **fields: Any) -> Held:
    """A lease that no database knows of."""
    lease = {
        **dict.fromkeys(("id", "worker_id", "fence", "version"), 1),
        **dict.fromkeys(("priority", "lane", "attempts", "lease_losses"), 0),
        **dict.fromkeys(("max_run_seconds", "tenant", "shard_key", "operation_key", "kwargs")),
        **{"queue": "default", "task": task.module_path, "recovery": "undeclared", "max_attempts": 8, "args": args},
        **dict.fromkeys(("created_epoch", "run_epoch"), 0.0),
        **fields,
    }
    return Held(Lease(**lease), safe_until=float("inf"))


def _only_attempt() -> Attempt:
    return Attempt.objects.get()


# -- what is returned --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, "", False, [], {}, "text", 1.5, [None], {"a": {"b": [1, "ß"]}}])
def test_a_return_value_is_stored_as_it_is(value: Any) -> None:
    result = give_back.enqueue(value)
    assert work() == 0
    assert (type(give_back.get_result(result.id).return_value), give_back.get_result(result.id).return_value) == (
        type(value),
        value,
    )


def test_none_takes_no_result_row() -> None:
    give_back.enqueue(None)
    assert work() == 0
    assert JobResult.objects.count() == 0
    assert Attempt.objects.count() == 0


@pytest.mark.case("H02")
@pytest.mark.case("H05")
@pytest.mark.parametrize(
    ("task", "args", "where"),
    [
        (contract_tasks.return_nul, [False], r"result\['v'\] holds a NUL"),
        (contract_tasks.return_nul, [True], r"result\['a\\x00'\] holds a NUL"),
        (contract_tasks.return_surrogate, [], "result holds half of a surrogate pair"),
        (contract_tasks.return_unserializable, [], r"result is of type set.*return sorted\(value\)"),
        (contract_tasks.return_large, [64 * 1024], r"result takes at least 65,5\d\d bytes of JSON"),
    ],
    ids=["NUL", "NUL in a key", "surrogate", "set", "large"],
)
def test_a_result_that_cannot_be_stored_ends_the_job_at_once(task: Any, args: list[Any], where: str) -> None:
    result = task.enqueue(*args)
    assert work() == 0
    job = row(result.id)
    assert (job.state, job.attempts, _only_attempt().failure_class) == ("dead", 1, "result")
    assert job.last_error_class == "pgqueue.exceptions.ResultError"
    with pytest.raises(AssertionError, match=where):
        raise AssertionError(job.last_error)


@override_settings(PGQUEUE={"MAX_RESULT_BYTES": 100})
def test_a_result_may_be_just_as_large_as_the_setting_says() -> None:
    fits = contract_tasks.return_large.enqueue(98)
    does_not = contract_tasks.return_large.enqueue(99)
    assert work() == 0
    assert (row(fits.id).state, row(does_not.id).state) == ("succeeded", "dead")


# -- what is raised ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "state", "failure_class"),
    [
        ("timed_out", "retrying", "system"),
        ("value", "retrying", "system"),
        ("connection", "retrying", "connection"),
        ("timeout", "retrying", "timeout"),
        ("type", "dead", "content"),
        ("assertion", "dead", "content"),
    ],
)
def test_content_fails_at_once_and_the_system_is_tried_again(kind: str, state: str, failure_class: str) -> None:
    result = contract_tasks.fail_with.enqueue(kind)
    assert work() == 0
    assert (row(result.id).state, _only_attempt().failure_class) == (state, failure_class)


@pytest.mark.parametrize(
    ("kind", "state"), [("invariant", "dead"), ("type", "retrying"), ("value", "retrying"), ("assertion", "dead")]
)
def test_a_task_overrules_the_table(kind: str, state: str) -> None:
    result = contract_tasks.fail_as_declared.enqueue(kind)
    assert work() == 0
    assert row(result.id).state == state


@pytest.mark.case("A08")
@pytest.mark.case("G07")
@pytest.mark.parametrize("kind", ["system_exit", "keyboard_interrupt", "generator_exit", "cancelled"])
@pytest.mark.parametrize(
    "task", [contract_tasks.fail_with, contract_tasks.fail_later_with], ids=["sync task", "async task"]
)
def test_an_exception_that_ends_programs_ends_only_the_attempt(task: Any, kind: str) -> None:
    result = task.enqueue(kind)
    next_one = give_back.enqueue(1)
    assert work(concurrency=1) == 0
    job = row(result.id)
    expected = KINDS[kind]
    assert (job.state, job.attempts) == ("retrying", 1)
    assert job.last_error_class == f"{expected.__module__}.{expected.__name__}"
    assert row(next_one.id).state == "succeeded"


def test_retry_names_its_delay_in_the_databases_time() -> None:
    told = contract_tasks.ask_for_retry.enqueue(1_000)
    untold = contract_tasks.ask_for_retry.enqueue()
    assert work() == 0
    for result, least, most in [(told, 1_000, 1_000), (untold, 50, 100)]:
        assert row(result.id).state == "retrying"
        assert least <= _seconds_waited(result.id) <= most


def _seconds_waited(id: str) -> float:
    """From the ending to when the job is due, by the database: what this machine's clock says is no matter."""
    attempt = Attempt.objects.filter(job_id=id).latest("id")
    return (row(id).run_at - attempt.ended_at).total_seconds()


def test_the_wait_doubles_with_every_attempt_from_the_tasks_own_base() -> None:
    result = contract_tasks.fail_as_declared.enqueue("value")
    for attempt in range(1, 5):
        assert work() == 0
        full = 100 * 2 ** (attempt - 1)
        assert full / 2 <= _seconds_waited(result.id) <= full
        Job.objects.update(run_at=F("created_at"))


@override_settings(PGQUEUE={"BACKOFF_CAP_SECONDS": 30, "BACKOFF_BASE_SECONDS": 5})
@pytest.mark.case("G01")
def test_the_wait_is_capped_however_many_attempts_there_were() -> None:
    result = contract_tasks.fail_with.using(max_attempts=32_000).enqueue("value")
    Job.objects.update(attempts=31_000)
    assert work() == 0
    assert 15 <= _seconds_waited(result.id) <= 30
    assert row(result.id).attempts == 31_001


@pytest.mark.case("G03")
@pytest.mark.parametrize("seconds", [-1, 1e300, "soon", float("inf")])
def test_a_delay_that_makes_no_sense_never_hides_the_job(seconds: Any) -> None:
    """An infinite one cannot be enqueued as an argument: it is raised by hand."""
    error = contract_tasks.Retry("why", after_seconds=seconds)
    ending = execution._failed(_held(contract_tasks.ask_for_retry), error, 0.0)
    assert ending.kind is EndingKind.RETRY
    assert 0 <= ending.delay_seconds <= 7 * 86_400


def test_bury_ends_the_job_with_its_reason() -> None:
    result = contract_tasks.give_up.enqueue("no such customer")
    assert work() == 0
    job = row(result.id)
    assert (job.state, job.attempts, job.last_error) == ("dead", 1, "no such customer")
    assert job.last_error_class == "pgqueue.exceptions.Bury"


@pytest.mark.case("G09")
def test_one_attempt_is_one_start_ever() -> None:
    result = contract_tasks.fail_once.enqueue()
    work_through_retries()
    work_through_retries()
    assert (row(result.id).state, row(result.id).attempts) == ("dead", 1)
    assert Attempt.objects.count() == 1


@pytest.mark.case("G10")
def test_only_the_last_failure_is_logged_as_an_error_and_once(caplog: pytest.LogCaptureFixture) -> None:
    result = contract_tasks.fail_three_times.enqueue()
    work_through_retries()
    assert row(result.id).state == "dead"
    lines = [record for record in caplog.records if record.levelno >= logging.WARNING]
    told = [(record.levelname, record.name) for record in lines]
    assert told == [("WARNING", "pgqueue.execution")] * 3 + [("ERROR", DJANGOS_LOGGER)]
    assert f"job={result.id} " in lines[2].getMessage()
    assert "attempt=3/3 class=system error=builtins.RuntimeError last=yes" in lines[2].getMessage()
    assert lines[3].exc_info is not None
    assert lines[3].exc_info[0] is RuntimeError


@pytest.mark.parametrize("deadly", ["type", "value"])
def test_a_dead_job_is_not_run_again(deadly: str) -> None:
    result = contract_tasks.fail_with.using(max_attempts=1).enqueue(deadly)
    work_through_retries()
    job = row(result.id)
    assert (job.state, job.attempts, job.worker_id, job.lease_until) == ("dead", 1, None, None)
    assert job.finished_at is not None


# -- what is stored of an error ----------------------------------------------------------------------------


@pytest.mark.case("H01")
def test_a_nul_in_an_error_is_shown_escaped() -> None:
    result = contract_tasks.fail_with_nul.enqueue()
    assert work() == 0
    job = row(result.id)
    assert (job.state, job.last_error_class) == ("dead", "builtins.ValueError")
    assert r"a\x00b" in job.last_error
    assert r"a\x00b" in _only_attempt().traceback


@pytest.mark.case("H05")
@pytest.mark.case("H06")
def test_half_a_surrogate_pair_in_an_error_is_shown_escaped(caplog: pytest.LogCaptureFixture) -> None:
    result = contract_tasks.fail_with_surrogate.enqueue()
    assert work() == 0
    job = row(result.id)
    assert (job.state, job.last_error) == ("dead", r"caf\udcff.txt")
    caplog.text.encode()


def test_ten_megabytes_of_error_are_cut() -> None:
    result = contract_tasks.fail_at_length.enqueue(10)
    assert work() == 0
    job = row(result.id)
    assert job.state == "dead"
    assert len(job.last_error) == 1_000
    assert job.last_error.endswith("[cut]")
    assert len(_only_attempt().traceback) <= 20_000


def test_an_exception_without_a_text_still_ends_the_attempt() -> None:
    result = contract_tasks.fail_with.enqueue("unprintable")
    assert work() == 0
    job = row(result.id)
    assert job.state == "retrying"
    assert job.last_error_class == "tests.testapp.contract_tasks.UnprintableError"
    assert "__str__ raised RuntimeError" in job.last_error


@pytest.mark.case("H14")
def test_a_secret_is_nowhere_but_in_the_arguments(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    result = contract_tasks.fail_with_secret.enqueue(token=SECRET)
    work_through_retries()
    assert row(result.id).state == "dead"
    assert SECRET not in "".join(record.getMessage() + str(record.exc_text) for record in caplog.records)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT string_agg(job::text, ' ') FROM pgqueue_job AS job),"
            " (SELECT string_agg(attempt::text, ' ') FROM pgqueue_attempt AS attempt)"
        )
        stored = " ".join(cursor.fetchone())
    assert "login failed" in stored
    assert SECRET not in stored
    result.refresh()
    assert SECRET not in str(result.errors)


# -- what belongs to no attempt ----------------------------------------------------------------------------


def test_a_lease_that_may_have_run_out_is_given_back_unstarted() -> None:
    held = _held(give_back, args="[1]")
    held.safe_until = 0.0
    assert execution.run(held) == Ending(EndingKind.RELEASE, 1, 1)
    held.safe_until, held.lost = float("inf"), True
    assert execution.run(held).kind is EndingKind.RELEASE


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """A function that makes this process forget a task."""

    def forget_task(task: Any) -> None:
        monkeypatch.delitem(registry._tasks, task.module_path)

    return forget_task


def test_a_task_that_is_registered_no_more_ends_its_job_as_unknown(forget: Callable[[Any], None]) -> None:
    held = _held(give_back)
    forget(give_back)
    ending = execution.run(held)
    assert ending.kind is EndingKind.BURY
    assert ending.failure is not None
    assert ending.failure.failure_class is FailureClass.CONTENT
    assert "No task is registered as 'tests.testapp.contract_tasks.give_back'" in ending.failure.description.message


@pytest.mark.case("A10")
def test_a_job_of_a_task_that_this_process_does_not_know_is_left_for_another(forget: Callable[[Any], None]) -> None:
    forget(give_back)
    Queue.objects.count()
    job = Job.objects.create(
        task="another.process.task", queue="default", max_attempts=8,
        created_at="2020-01-01T00:00Z", run_at="2020-01-01T00:00Z",
    )  # fmt: skip
    known = contract_tasks.double.enqueue(1)
    assert work() == 0
    job.refresh_from_db()
    assert (job.state, job.version, job.attempts, job.claimed_at) == ("pending", 1, 0, None)
    assert row(known.id).state == "succeeded"


def test_the_run_time_is_measured_and_the_instants_are_the_databases() -> None:
    result = contract_tasks.block_the_loop.enqueue(0.2)
    assert work() == 0
    result.refresh()
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert 0.2 <= (result.finished_at - result.started_at).total_seconds() < 5


def test_a_run_says_how_long_it_took_also_when_it_fails() -> None:
    began = time.monotonic()
    ending = execution.run(_held(contract_tasks.fail_once))
    assert 0 <= ending.run_seconds <= time.monotonic() - began
    assert ending.kind is EndingKind.RETRY


def test_a_cancellation_is_classified_as_a_failure_of_the_system() -> None:
    ending = execution._failed(_held(give_back), asyncio.CancelledError(), 0.0)
    assert (ending.kind, ending.failure and ending.failure.failure_class) == (EndingKind.RETRY, FailureClass.SYSTEM)
