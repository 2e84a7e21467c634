"""Runs that take too long: interrupted at their limit, and known as stuck when they go on."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from django.db import connections
from django.test import override_settings

from pgqueue import conf, enqueue_many, execution
from pgqueue.compat import InvalidTask
from pgqueue.exceptions import JobStoppedError, JobTimeoutError, SettingsError
from pgqueue.failures import FailureClass
from pgqueue.holding import Held
from pgqueue.models import Attempt, Job, Worker
from pgqueue.protocol.settling import EndingKind
from pgqueue.worker import process
from pgqueue.worker.exits import Exit
from pgqueue.worker.inbox import Inbox
from pgqueue.worker.options import Options
from pgqueue.worker.process import _run
from pgqueue.worker.watch import Run, ThreadRun
from tests.inline import row, work
from tests.test_execution import _held
from tests.testapp import async_tasks
from tests.testapp.async_tasks import gate, seen

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

QUICK = {"MAX_RUN_SECONDS": 0.2, "KILL_GRACE_SECONDS": 20, "LISTEN": False}
TIMEOUT_ERROR = "pgqueue.exceptions.JobTimeoutError"
BOTH = pytest.mark.parametrize("task", [async_tasks.forever, async_tasks.forever_async], ids=["sync", "async"])


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    async_tasks.reset()
    yield
    gate.set()


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


# -- a limit that is passed --------------------------------------------------------------------------------


@BOTH
@pytest.mark.case("K15")
def test_a_jobs_own_limit_is_on_its_row_and_ends_the_run_to_be_retried(task: Any) -> None:
    """There is no default, so nothing else can have ended it."""
    assert conf.current().max_run_seconds is None
    result = task.using(max_run_seconds=1).enqueue()
    assert row(result.id).max_run_seconds == 1
    assert work() == 0
    job, attempt = row(result.id), Attempt.objects.get()
    assert (job.state, job.attempts, job.last_error_class) == ("retrying", 1, TIMEOUT_ERROR)
    assert (attempt.failure_class, attempt.outcome) == ("timeout", "failed")
    assert f"Job {result.id} ran for longer than its limit of 1 seconds" in job.last_error
    assert 1 <= (attempt.ended_at - attempt.started_at).total_seconds() < 5


@override_settings(PGQUEUE=QUICK)
@BOTH
def test_the_setting_is_the_limit_of_every_other_task(task: Any) -> None:
    result = task.using(max_attempts=1).enqueue()
    other = async_tasks.nothing_async.enqueue()
    assert work() == 0
    assert (row(result.id).state, row(result.id).last_error_class) == ("dead", TIMEOUT_ERROR)
    assert row(result.id).max_run_seconds is None
    assert row(other.id).state == "succeeded"


@override_settings(PGQUEUE={**QUICK, "MAX_RUN_SECONDS": 0.05})
def test_a_jobs_own_limit_may_be_longer_than_the_setting() -> None:
    result = async_tasks.block_for.using(max_run_seconds=60).enqueue(0.4)
    assert work() == 0
    assert row(result.id).state == "succeeded"


@override_settings(PGQUEUE=QUICK)
def test_a_timeout_is_buried_where_the_task_says_so() -> None:
    result = async_tasks.forever_async_once.enqueue()
    assert work() == 0
    assert (row(result.id).state, row(result.id).attempts) == ("dead", 1)


@override_settings(PGQUEUE=QUICK)
def test_the_thread_of_an_interrupted_run_serves_the_next_job() -> None:
    enqueue_many([async_tasks.forever.using(max_attempts=1).bind()] * 2)
    last = async_tasks.open_the_gate.enqueue()
    assert work(concurrency=1) == 0
    assert row(last.id).state == "succeeded"
    assert Job.objects.filter(state="dead").count() == 2


@override_settings(PGQUEUE=QUICK)
def test_a_run_may_look_whether_it_has_passed_its_limit() -> None:
    results = [async_tasks.until_stopped.enqueue(), async_tasks.forever_unmoved.enqueue()]
    assert work() == 0
    for result in results:
        result.refresh()
    assert [result.return_value for result in results] == [True, "JobTimeoutError"]


@override_settings(PGQUEUE=QUICK)
def test_what_a_task_raises_when_it_is_cancelled_is_its_own() -> None:
    result = async_tasks.fail_when_cancelled.enqueue()
    assert work() == 0
    assert row(result.id).last_error_class == "builtins.ConnectionError"
    assert Attempt.objects.get().failure_class == "connection"


@override_settings(PGQUEUE=QUICK)
@pytest.mark.case("K04")
def test_a_shield_holds_no_longer_than_its_task() -> None:
    """What was shielded is cancelled in its turn, and the job is over once that has cleaned up."""
    result = async_tasks.shield_a_task.enqueue()
    assert work() == 0
    assert seen == ["running"]
    assert row(result.id).last_error_class == TIMEOUT_ERROR


@override_settings(PGQUEUE=QUICK)
@pytest.mark.parametrize("thread_sensitive", [True, False])
def test_a_cancelled_job_is_not_over_while_its_call_on_a_thread_goes_on(thread_sensitive: bool) -> None:
    result = async_tasks.wait_on_a_thread.enqueue(thread_sensitive)
    threading.Thread(target=_open_when_cancelled, args=(result.id,)).start()
    assert work() == 0
    assert seen == ["began", "running", "ended"]
    assert row(result.id).last_error_class == TIMEOUT_ERROR


def _open_when_cancelled(id: str) -> None:
    """Give it time to be settled too early: far longer than the limit."""
    _until(lambda: seen == ["began"])
    time.sleep(0.6)
    seen.append(row(id).state)
    connections.close_all()
    gate.set()


# -- the interruption hits its own run only ----------------------------------------------------------------


def test_an_interruption_never_comes_out_of_a_later_call() -> None:
    """Two thousand calls that last just about until they are interrupted."""
    current: list[ThreadRun] = []
    is_over = threading.Event()
    outside: list[BaseException] = []

    def interrupt_all() -> None:
        last = None
        while not is_over.is_set():
            if current and current[-1] is not last:
                last = current[-1]
                last.interrupt()

    def serve() -> None:
        held, interrupted = _held(async_tasks.forever), 0
        try:
            for number in range(2_000):
                run = ThreadRun(held)
                current[:] = [run]
                try:
                    run.call(partial(sum, range(number % 50)))
                except JobTimeoutError:
                    interrupted += 1
                for _ in range(50):
                    pass
        except BaseException as error:
            outside.append(error)
        seen.append(interrupted)

    interrupter, server = threading.Thread(target=interrupt_all), threading.Thread(target=serve)
    interrupter.start()
    server.start()
    server.join()
    is_over.set()
    interrupter.join()
    assert outside == []
    print(f"{seen[0]} of 2,000 calls were interrupted")


def test_an_interruption_that_comes_too_late_is_revoked() -> None:
    run = ThreadRun(_held(async_tasks.forever))
    assert run.call(lambda: 1) == 1
    run.interrupt()
    for _ in range(1_000):
        pass


def test_a_run_interrupts_itself_at_once() -> None:
    run = ThreadRun(_held(async_tasks.forever))

    def interrupt_and_go_on() -> None:
        run.interrupt()
        for _ in range(1_000):
            pass

    with pytest.raises(JobTimeoutError, match="longer than its limit: end it now"):
        run.call(interrupt_and_go_on)


# -- runs that nothing stops -------------------------------------------------------------------------------


class LeftError(Exception):
    """In the place of the end of the process."""


@override_settings(PGQUEUE={**QUICK, "KILL_GRACE_SECONDS": 0.3})
def test_a_stuck_thread_is_left_when_its_neighbours_have_ended(
    monkeypatch: pytest.MonkeyPatch, in_background: Callable[..., Future[Any]]
) -> None:
    left: list[tuple[list[Held], set[str], int]] = []

    def leave(stuck: Sequence[Run], abandoned: Sequence[Held], *, alias: str, worker_id: int) -> None:
        states = set(Job.objects.exclude(pk=stuck_id).values_list("state", flat=True))
        stopped = Worker.objects.filter(pk=worker_id, stopped_at__isnull=False).count()
        left.append(([run.held for run in stuck], states, stopped))
        connections.close_all()
        raise LeftError

    monkeypatch.setattr(process, "leave", leave)
    # Beyond the two threads: one neighbour of each kind, which the stuck one outlives.
    stuck_id = int(async_tasks.wait_in_c.enqueue().id)
    neighbours = enqueue_many(
        task.using(max_run_seconds=60).bind(0.8) for task in (async_tasks.sleep_for, async_tasks.sleep_for_async)
    )
    options = Options("default", concurrency=2, lease_seconds=1.2, poll_seconds=0.2)
    future = in_background(_run, options, Inbox())
    with pytest.raises(LeftError):
        future.result(30)
    ((stuck, states, stopped),) = left
    assert [held.lease.id for held in stuck] == [stuck_id]
    assert (states, stopped) == ({"succeeded"}, 1)
    assert [row(id).lease_losses for id in neighbours] == [0, 0]
    job = row(stuck_id)
    assert (job.state, job.fence, seen) == ("running", stuck[0].lease.fence, ["stuck"])
    gate.set()
    _until(lambda: seen == ["stuck", "over"])


@override_settings(PGQUEUE={**QUICK, "KILL_GRACE_SECONDS": 0.2})
def test_a_run_that_ends_after_all_is_settled_as_usual_and_the_process_is_replaced_anyway(
    in_background: Callable[..., Future[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    result = async_tasks.wait_in_c.enqueue()
    async_tasks.sleep_for.using(max_run_seconds=60).enqueue(2.0)
    future = in_background(_run, Options("default", concurrency=2, lease_seconds=60, poll_seconds=0.2), Inbox())
    _until(lambda: "worker.stopping reason=stuck" in caplog.text)
    gate.set()
    assert future.result(30) == Exit.STUCK
    assert (row(result.id).state, row(result.id).last_error_class) == ("retrying", TIMEOUT_ERROR)
    assert seen == ["stuck", "over"]
    assert re.search(r"job\.stuck job=\d+ .* at=threading\.py:\d+<threading\.py:\d+<async_tasks\.py:\d+", caplog.text)


def test_the_ending_of_a_stuck_run_is_a_timeout() -> None:
    held = _held(async_tasks.wait_in_c, max_run_seconds=5)
    ending = execution.timed_out(held, run_seconds=35.0)
    assert (ending.kind, ending.run_seconds) == (EndingKind.RETRY, 35.0)
    assert ending.failure is not None
    assert ending.failure.failure_class is FailureClass.TIMEOUT
    assert execution.timed_out(_held(async_tasks.forever_async_once), run_seconds=1.0).kind is EndingKind.BURY


# -- what is said and refused ------------------------------------------------------------------------------


def test_a_context_raises_what_the_matter_is() -> None:
    held = _held(async_tasks.until_stopped, max_run_seconds=5)
    context = execution.JobContext(held, None)  # type: ignore[arg-type]
    context.raise_if_stopped()
    assert not context.stop_requested
    held.timed_out = True
    assert context.stop_requested
    with pytest.raises(JobTimeoutError, match="its limit of 5 seconds"):
        context.raise_if_stopped()
    held.stop_requested = True
    with pytest.raises(JobStoppedError, match="Job 1 was asked to stop"):
        context.raise_if_stopped()


@pytest.mark.parametrize("seconds", [0, -1, 1.5, True, "1", 2**31])
def test_a_limit_is_a_whole_number_of_seconds(seconds: Any) -> None:
    with pytest.raises(InvalidTask, match="max_run_seconds must be a whole number of seconds above 0"):
        async_tasks.forever.using(max_run_seconds=seconds)


@pytest.mark.parametrize(
    ("key", "value"), [("MAX_RUN_SECONDS", 0), ("MAX_RUN_SECONDS", "1"), ("KILL_GRACE_SECONDS", 0)]
)
def test_settings_that_make_no_sense_are_refused(key: str, value: Any) -> None:
    with override_settings(PGQUEUE={key: value}), pytest.raises(SettingsError, match=key):
        conf.current()
