"""Async tasks on the worker's event loop: beside the threads, each for itself, over when all of it is over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from pgqueue import enqueue_many
from pgqueue.models import Attempt, Job
from pgqueue.operations import Actor, act
from pgqueue.states import Outcome
from pgqueue.worker import event_loop
from pgqueue.worker.inbox import Inbox, Signal
from pgqueue.worker.options import Options
from pgqueue.worker.process import _run
from tests.inline import row, work
from tests.testapp import async_tasks
from tests.testapp.async_tasks import gate, seen

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    async_tasks.reset()
    yield
    gate.set()


def _states() -> dict[str, int]:
    states: dict[str, int] = {}
    for state in Job.objects.values_list("state", flat=True):
        states[state] = states.get(state, 0) + 1
    return states


def _value(result: Any) -> Any:
    result.refresh()
    assert result.is_finished, (row(result.id).state, row(result.id).last_error)
    return result.return_value


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def start(in_background: Callable[..., Future[Any]]) -> Iterator[Callable[..., Inbox]]:
    """A function that starts a worker which works until told to stop; told at the end of the test."""
    running: list[tuple[Inbox, Future[Any]]] = []

    def start_one(**given: Any) -> Inbox:
        inbox = Inbox()
        options = {"alias": "default", "concurrency": 2, "lease_seconds": 60, "poll_seconds": 0.2, **given}
        running.append((inbox, in_background(_run, Options(**options), inbox)))
        return inbox

    with override_settings(PGQUEUE={"LISTEN": False}):
        yield start_one
        gate.set()
        for inbox, future in running:
            inbox.put(Signal.STOP)
            assert future.result(30) == 0


# -- slots -------------------------------------------------------------------------------------------------


def test_many_async_jobs_run_at_once_beside_one_thread() -> None:
    enqueue_many([async_tasks.meet_async.bind(50)] * 50)
    assert work(concurrency=1, async_concurrency=50) == 0
    assert _states() == {"succeeded": 50}


def test_no_more_run_at_once_than_the_option_says() -> None:
    enqueue_many(async_tasks.count_neighbours.bind(number) for number in range(20))
    assert work(concurrency=8, async_concurrency=3) == 0
    assert max(seen) <= 3
    assert len(seen) == 20


@override_settings(PGQUEUE={"ASYNC_CONCURRENCY": 1})
def test_the_setting_says_how_many_where_the_option_does_not() -> None:
    enqueue_many(async_tasks.count_neighbours.bind(number) for number in range(5))
    assert work(concurrency=8) == 0
    assert seen == [1] * 5


def test_busy_threads_keep_no_async_job_waiting() -> None:
    enqueue_many([async_tasks.wait_at_the_gate.bind()] * 5)
    async_tasks.open_the_gate_async.enqueue()
    assert work(concurrency=1) == 0
    assert _states() == {"succeeded": 6}


def test_a_full_loop_keeps_no_thread_waiting() -> None:
    enqueue_many([async_tasks.wait_async.bind()] * 5)
    async_tasks.open_the_gate.enqueue()
    assert work(concurrency=1, async_concurrency=2) == 0
    assert _states() == {"succeeded": 6}


def test_guarded_and_recovered_async_jobs_run_on_the_loop_too() -> None:
    enqueue_many([async_tasks.nothing_async.using(shard_key="s").bind()] * 5)
    Job.objects.filter(pk=async_tasks.nothing_async.enqueue().id).update(lane=2, lease_losses=1)
    assert work() == 0
    assert _states() == {"succeeded": 6}


# -- surroundings ------------------------------------------------------------------------------------------


def test_each_job_has_a_context_of_its_own() -> None:
    results = [async_tasks.paint.enqueue(name) for name in ("red", "green", "blue")]
    assert work() == 0
    results.append(async_tasks.paint.enqueue("late"))
    assert work() == 0
    assert [_value(result)[0] for result in results] == ["none"] * 4
    assert "de" not in [_value(result)[1] for result in results]


@pytest.mark.case("J16")
def test_the_orm_works_in_every_way_from_an_async_task() -> None:
    other = async_tasks.wait_async.using(queue_name="other").enqueue()
    result = async_tasks.orm_in_every_way.enqueue(int(other.id))
    assert work(queues=("default",)) == 0
    assert _value(result) == ["pending"] * 4


def test_a_job_has_one_connection_to_itself_and_it_is_closed_after_it() -> None:
    results = [async_tasks.sessions_async.enqueue() for _ in range(3)]
    assert work() == 0
    pairs = [_value(result) for result in results]
    assert all(first == second for first, second in pairs)
    assert len({first for first, _ in pairs}) == 3
    assert _alive([first for first, _ in pairs]) == 0


@override_settings(PGQUEUE={"ASYNC_THREADS": 2})
def test_a_burst_of_async_jobs_takes_no_more_connections_than_the_setting_says() -> None:
    enqueue_many(async_tasks.count_sessions.bind(number) for number in range(20))
    assert work() == 0
    assert _states() == {"succeeded": 20}
    assert (max(seen), len(seen)) == (2, 20)


def test_a_job_that_waits_for_a_thread_can_be_stopped(start: Callable[..., Inbox]) -> None:
    with override_settings(PGQUEUE={"LISTEN": False, "ASYNC_THREADS": 1}):
        first = async_tasks.use_the_orm_and_wait.enqueue("first")
        start(lease_seconds=1)
        _until(lambda: "first asked" in seen)
        second = async_tasks.use_the_orm_and_wait.enqueue("second")
        _until(lambda: "second began" in seen)
        _ask_to_stop(second.id)
        _until(lambda: row(second.id).state == "cancelled")
    assert row(first.id).state == "running"
    assert "second asked" not in seen


def test_a_block_left_open_in_the_jobs_thread_is_closed_with_it() -> None:
    result = async_tasks.leave_block_open_async.enqueue()
    assert work() == 0
    assert _alive([_value(result)]) == 0


def test_calls_on_loose_threads_leave_nothing_to_the_next() -> None:
    soiled = async_tasks.soil_loose_threads.using(priority=1).enqueue()
    looked = async_tasks.look_at_loose_threads.enqueue()
    assert work(async_concurrency=1) == 0
    assert _value(soiled) is None
    assert set(_value(looked)) == {"UTC"}


def _alive(sessions: list[int]) -> int:
    def count() -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)", [sessions])
            return cursor.fetchone()[0]

    _until(lambda: count() == 0)
    return count()


# -- the end of a run --------------------------------------------------------------------------------------


def test_a_job_is_over_when_what_it_started_is_over() -> None:
    """What it left is cancelled, and sees the job still running while it cleans up."""
    async_tasks.leave_a_task.enqueue()
    assert work() == 0
    assert seen == ["running"]
    assert _states() == {"succeeded": 1}


@pytest.mark.case("G07")
def test_an_exit_in_a_task_within_a_task_ends_only_the_job(caplog: pytest.LogCaptureFixture) -> None:
    exits = async_tasks.start_what_exits.enqueue()
    neighbour = async_tasks.nothing_async.enqueue()
    assert work() == 0
    assert (row(exits.id).state, row(exits.id).last_error_class) == ("dead", "builtins.SystemExit")
    assert row(neighbour.id).state == "succeeded"
    assert any("loop.interrupted" in record.getMessage() for record in caplog.records)


def test_a_job_that_stops_the_loop_does_not_stop_it() -> None:
    result = async_tasks.stop_the_loop.enqueue()
    assert work() == 0
    assert _value(result) == "went on"


def test_a_worker_leaves_no_thread_behind() -> None:
    threads = set(threading.enumerate())
    async_tasks.sessions_async.enqueue()
    async_tasks.look_at_loose_threads.enqueue()
    assert work() == 0
    # They have been told to end, and nobody waits for them.
    _until(lambda: set(threading.enumerate()) == threads)


def test_a_stop_lets_async_jobs_end_and_gives_the_rest_back(start: Callable[..., Inbox]) -> None:
    running = enqueue_many(async_tasks.wait_async.bind(f"job-{n}") for n in range(2))
    inbox = start(async_concurrency=2)
    _until(lambda: len(seen) == 2)
    others = enqueue_many(async_tasks.wait_async.bind("later") for _ in range(3))
    inbox.put(Signal.STOP)
    gate.set()
    _until(lambda: all(row(id).state == "succeeded" for id in running))
    assert {(row(id).state, row(id).attempts) for id in others} == {("pending", 0)}


# -- requests to stop --------------------------------------------------------------------------------------


def _ask_to_stop(id: int | str) -> None:
    version = row(id).version
    done = act("ask_to_stop", str(id), version_seen=version, actor=Actor(id=None, name="tests"), reason="why")
    assert done.outcome == Outcome.APPLIED


@pytest.mark.case("K12")
@pytest.mark.case("K13")
@pytest.mark.parametrize(
    "task",
    [async_tasks.forever_async, async_tasks.raise_when_stopped],
    ids=["async task that never looks", "sync task that looks"],
)
def test_one_of_five_is_stopped_within_a_heartbeat_and_not_run_again(
    start: Callable[..., Inbox], task: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="pgqueue")
    stopped = task.enqueue()
    others = enqueue_many(async_tasks.wait_async.bind("job") for _ in range(4))
    start(lease_seconds=6)
    _until(lambda: len(seen) == 5)
    _ask_to_stop(stopped.id)
    _until(lambda: row(stopped.id).state == "cancelled")
    attempt = Attempt.objects.get()
    # One heartbeat, and what a slow machine takes to act on it.
    assert attempt.ended_at - row(stopped.id).stop_requested_at < timedelta(seconds=2 + 3)
    assert (attempt.failure_class, attempt.error_class) == ("stopped", "pgqueue.exceptions.JobStoppedError")
    assert {row(id).state for id in others} == {"running"}
    gate.set()
    _until(lambda: _states() == {"succeeded": 4, "cancelled": 1})
    told = [record for record in caplog.records if f"={stopped.id} " in record.getMessage()]
    assert [(record.levelname, record.msg.split()[0]) for record in told] == [("INFO", "job.stopped")]


# -- a loop that is blocked --------------------------------------------------------------------------------


@pytest.mark.case("J18")
def test_a_blocked_loop_is_told_once_with_who_blocks_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(event_loop, "BLOCKED_SECONDS", 0.5)
    result = async_tasks.block_for.enqueue(1.5)
    assert work() == 0
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("loop.")]
    blocked, free = lines
    assert blocked.startswith("loop.blocked seconds=")
    assert blocked.endswith(f"by=job-{result.id}")
    assert free.startswith("loop.free seconds=")


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.mark.faults
def test_ten_thousand_jobs_take_no_more_memory_than_two_thousand() -> None:
    enqueue_many([async_tasks.nothing_async.bind()] * 2_000)
    assert work() == 0
    before = _resident_mb()
    enqueue_many([async_tasks.nothing_async.bind()] * 10_000)
    began = time.monotonic()
    assert work() == 0
    print(f"{10_000 / (time.monotonic() - began):,.0f} jobs a second, {_resident_mb() - before:+.1f} MB")
    assert _states() == {"succeeded": 12_000}
    assert _resident_mb() - before < 15


def test_a_transactional_job_whose_task_has_become_a_coroutine_is_not_run_without_its_transaction() -> None:
    result = async_tasks.nothing_async.enqueue()
    Job.objects.filter(pk=result.id).update(recovery="transactional")
    work()
    job = row(result.id)
    assert (job.state, job.attempts) == ("retrying", 1)
    assert "has no transaction around it" in job.last_error
