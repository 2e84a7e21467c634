"""A whole worker in this process: what it takes, in which order, what it leaves, and what it leaves behind."""

from __future__ import annotations

import asyncio
import logging
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from pgqueue import enqueue_many
from pgqueue.backoff import delay_seconds
from pgqueue.compat import TaskResultStatus, task_finished
from pgqueue.models import Attempt, Job, JobPayload, Queue, Worker
from pgqueue.operations import Actor, act
from pgqueue.states import Outcome
from pgqueue.worker import dispatcher as dispatching
from pgqueue.worker.executor import Executor
from pgqueue.worker.inbox import Inbox, Signal
from pgqueue.worker.options import Options
from pgqueue.worker.outage import RECONNECT_CAP_SECONDS
from pgqueue.worker.process import _run
from tests.factories import WORKER, JobFactory, QueueFactory, from_now
from tests.inline import row, work, work_through_retries, work_together
from tests.testapp import contract_tasks
from tests.testapp.contract_tasks import double, nothing, record, recorded

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])


@pytest.fixture(autouse=True)
def _nothing_recorded() -> None:
    recorded.clear()


def _states() -> set[str]:
    return set(Job.objects.values_list("state", flat=True))


# -- what it takes -----------------------------------------------------------------------------------------


def test_a_burst_runs_everything_that_is_due() -> None:
    enqueue_many(record.bind(number) for number in range(1_500))
    assert work() == 0
    assert sorted(recorded) == list(range(1_500))
    assert _states() == {"succeeded"}


@override_settings(PGQUEUE={"LISTEN": False, "POLL_WITHOUT_LISTEN_SECONDS": 60})
def test_a_burst_runs_what_its_last_job_enqueued() -> None:
    """The worker has looked, and found nothing more, while that job ran."""
    outer = contract_tasks.enqueue_another.enqueue(4, after_seconds=0.5)
    assert work(concurrency=4) == 0
    inner = contract_tasks.enqueue_another.get_result(outer.id).return_value
    assert double.get_result(inner).return_value == 8


def test_a_burst_on_an_empty_queue_ends_at_once() -> None:
    began = time.monotonic()
    assert work() == 0
    assert time.monotonic() - began < 5


def test_the_dispatcher_is_told_when_a_notice_was_given() -> None:
    """A burst or a drain may have waited for nothing else, and would sleep on."""
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    executor = Executor(1, on_ending=lambda ending: told.put("ending"), on_rest=lambda: told.put("given"))
    executor.start()
    executor.submit([lambda: None])
    assert told.get(timeout=10) == "given"
    assert executor.is_idle()
    executor.submit([lambda: 1 / 0])
    assert told.get(timeout=10) == "given"
    executor.stop()


def test_a_burst_leaves_what_is_not_due() -> None:
    later = double.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
    now = double.using(run_after=timezone.now() - timedelta(hours=1)).enqueue(1)
    assert work() == 0
    assert (row(later.id).state, row(later.id).version) == ("pending", 1)
    assert row(now.id).state == "succeeded"


def test_a_worker_stops_after_as_many_jobs_as_it_was_told() -> None:
    enqueue_many(record.bind(number) for number in range(20))
    assert work(burst=False, max_jobs=7) == 0
    assert len(recorded) == 7
    assert Job.objects.filter(state="pending").count() == 13


def test_jobs_run_by_priority_then_by_age() -> None:
    for number, priority in enumerate([0, -100, 100, 0, 7]):
        record.using(priority=priority).enqueue(number)
    assert work(concurrency=1) == 0
    assert recorded == [2, 4, 0, 3, 1]


def test_a_worker_serves_the_queues_it_was_told() -> None:
    enqueue_many(record.using(queue_name=name).bind(number) for number, name in enumerate("abc"))
    assert work(queues=("a", "missing")) == 0
    assert recorded == [0]
    assert work(excluded=("c",)) == 0
    assert recorded == [0, 1]
    assert work() == 0
    assert recorded == [0, 1, 2]


def test_a_paused_queue_is_left_until_it_is_resumed() -> None:
    enqueue_many(record.using(queue_name=name).bind(number) for number, name in enumerate("ab"))
    actor = Actor(id=None, name="tests")
    Queue.objects.create(name="a", created_at=timezone.now(), version=1)
    assert act("pause_queue", "a", version_seen=1, actor=actor, reason="why").outcome == Outcome.APPLIED
    assert work() == 0
    assert recorded == [1]
    version = Queue.objects.get(name="a").version
    assert act("resume_queue", "a", version_seen=version, actor=actor, reason="why").outcome == Outcome.APPLIED
    assert work() == 0
    assert recorded == [1, 0]


def test_jobs_of_one_shard_key_run_in_order_and_one_at_a_time() -> None:
    enqueue_many(record.using(shard_key="s").bind(number) for number in range(30))
    enqueue_many(record.using(tenant="t").bind(number) for number in range(100, 130))
    assert work(concurrency=8) == 0
    assert [number for number in recorded if number < 100] == list(range(30))
    assert sorted(number for number in recorded if number >= 100) == list(range(100, 130))


@pytest.mark.case("G06")
def test_an_expired_lease_is_taken_over_and_the_job_run_alone() -> None:
    job = JobFactory(expired=True, task=double.module_path)
    JobPayload.objects.create(job_id=job.id, args=[4])
    assert work() == 0
    job.refresh_from_db()
    assert (job.state, job.attempts, job.lease_losses) == ("succeeded", 1, 1)
    result = double.get_result(str(job.id))
    assert (result.return_value, len(result.worker_ids)) == (8, 2)
    assert [error.exception_class.__name__ for error in result.errors] == ["JobLostError"]
    assert list(Attempt.objects.order_by("id").values_list("outcome", flat=True)) == ["lost", "succeeded"]


def test_a_live_lease_of_another_worker_is_left_alone() -> None:
    job = JobFactory(running=True, task=double.module_path)
    assert work() == 0
    job.refresh_from_db()
    assert (job.state, job.worker_id) == ("running", WORKER)


def test_a_requeued_job_runs_again_and_tells_all_its_attempts() -> None:
    heard: list[Any] = []

    def hear(task_result: Any, **kwargs: Any) -> None:
        heard.append(task_result)

    result = contract_tasks.fail_once.enqueue()
    task_finished.connect(hear)
    try:
        assert work() == 0
        job = row(result.id)
        done = act(
            "requeue", result.id, version_seen=job.version, actor=Actor(id=None, name="tests"), reason="try again"
        )
        assert done.outcome == Outcome.APPLIED
        assert work() == 0
    finally:
        task_finished.disconnect(hear)
    result.refresh()
    assert (row(result.id).state, result.attempts, len(result.errors)) == ("dead", 2, 2)
    assert [told.attempts for told in heard] == [1, 2]
    assert heard[1].worker_ids == result.worker_ids


def test_a_worker_runs_more_threads_than_one() -> None:
    """Two tasks that wait for each other."""
    enqueue_many([contract_tasks.meet.bind()] * 2)
    assert work(concurrency=2) == 0
    assert _states() == {"succeeded"}


@pytest.mark.case("B26")
def test_one_claim_is_one_start() -> None:
    for number in range(25):
        enqueue_many(record.bind(number * 20 + place) for place in range(20))
        if number % 5 == 4:
            assert work(concurrency=10) == 0
    assert sorted(recorded) == list(range(500))


@pytest.mark.case("B14")
def test_workers_in_contention_log_no_error_and_run_each_job_once(caplog: pytest.LogCaptureFixture) -> None:
    enqueue_many(record.bind(number) for number in range(2_000))
    enqueue_many(record.using(shard_key=f"s{number % 5}").bind(number) for number in range(2_000, 2_100))
    assert work_together(4) == [0] * 4
    # A burst may end while the next job of a key waits for one that another worker still settles.
    assert work() == 0
    assert sorted(recorded) == list(range(2_100))
    assert set(Job.objects.values_list("state", "attempts", "lease_losses")) == {("succeeded", 1, 0)}
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


# -- what it leaves behind ---------------------------------------------------------------------------------


def test_a_worker_that_is_done_leaves_a_stopped_row_and_nothing_else() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    threads = set(threading.enumerate())
    double.enqueue(1)
    assert work(concurrency=3, lease_seconds=45) == 0
    worker = Worker.objects.get()
    assert (worker.slots, worker.lease_seconds, worker.queues) == (3, 45.0, None)
    assert worker.stopped_at is not None
    assert double.module_path in worker.tasks
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    assert set(threading.enumerate()) == threads


def test_the_last_line_says_what_came_of_the_jobs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="pgqueue")
    enqueue_many(double.bind(number) for number in range(3))
    assert work() == 0
    assert work() == 0
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("worker.stopped")]
    assert [line.partition(" ")[2].partition(" ")[2] for line in lines] == ["succeeded=3", "ended=0"]


def test_a_worker_that_found_no_task_warns(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgqueue.registry.names", lambda: ())
    assert work() == 0
    (line,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert line.startswith("worker.no_tasks modules=tasks ")


@override_settings(PGQUEUE={"WORKER_RETENTION_SECONDS": 3600})
@pytest.mark.case("A01")
def test_rows_of_workers_long_gone_are_pruned_and_no_job_needs_them() -> None:
    old = from_now(-7200)
    gone = Worker.objects.create(
        started_at=old, heartbeat_at=old, stopped_at=None, lease_seconds=60, pid=1, slots=1, host="h", release="v",
        queues=None, excluded_queues=[], tasks=[],
    )  # fmt: skip
    job = JobFactory(expired=True, task=nothing.module_path, worker_id=gone.id)
    assert work() == 0
    assert not Worker.objects.filter(pk=gone.id).exists()
    job.refresh_from_db()
    assert job.state == "succeeded"


# -- waiting and waking ------------------------------------------------------------------------------------


@pytest.fixture
def start(in_background: Callable[..., Future[Any]]) -> Iterator[Callable[..., Inbox]]:
    """A function that starts a worker which works until told to stop; told at the end of the test."""
    running: list[tuple[Inbox, Future[Any]]] = []

    def start_one(**given: Any) -> Inbox:
        inbox = Inbox()
        options = {"alias": "default", "concurrency": 2, "lease_seconds": 60, "poll_seconds": 600, **given}
        running.append((inbox, in_background(_run, Options(**options), inbox)))
        return inbox

    yield start_one
    for inbox, future in running:
        inbox.put(Signal.STOP)
        assert future.result(30) == 0


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _is_listening(watching: psycopg.Connection[Any]) -> bool:
    return _count_listening(watching) > 0


def _count_listening(watching: psycopg.Connection[Any]) -> int:
    found = watching.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'pgqueue listener' AND query ILIKE '%%LISTEN%%' AND state = 'idle'"
    ).fetchone()
    assert found is not None
    return int(found[0])


def test_an_idle_worker_is_woken_by_an_enqueue(
    start: Callable[..., Inbox], queue_connection: psycopg.Connection[Any]
) -> None:
    """It would sleep for minutes otherwise."""
    start()
    _until(lambda: _is_listening(queue_connection))
    for number in range(3):
        result = double.enqueue(number)
        _until(lambda: double.get_result(result.id).status == TaskResultStatus.SUCCESSFUL)  # noqa: B023


@pytest.mark.case("C20")
def test_a_notification_wakes_every_worker_for_one_claim_and_not_every_thread(
    start: Callable[..., Inbox], queue_connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    really = dispatching.settle_and_claim

    def counting(connection: Any, *, worker_id: int, wishes: Sequence[Any], **options: Any) -> Any:
        asked.extend([worker_id] * len(wishes))
        return really(connection, worker_id=worker_id, wishes=wishes, **options)

    monkeypatch.setattr(dispatching, "settle_and_claim", counting)
    for _ in range(3):
        start(concurrency=20)
    _until(lambda: _count_listening(queue_connection) == 3)
    warm_up = double.enqueue(0)
    _until(lambda: double.get_result(warm_up.id).is_finished and len(set(asked)) == 3)
    time.sleep(1)
    before = len(asked)
    result = double.enqueue(1)
    _until(lambda: double.get_result(result.id).is_finished)
    time.sleep(1)
    # Each worker has a claim for its threads and one for its loop, and looks again once after the window.
    assert 0 < len(asked) - before <= 3 * 2 * 2


@pytest.mark.case("C27")
def test_a_hanging_session_with_a_lock_on_a_queue_keeps_no_work_waiting(
    queue_connection: psycopg.Connection[Any], second_connection: psycopg.Connection[Any]
) -> None:
    QueueFactory(name="mail")
    results = [double.using(queue_name=name).enqueue(1) for name in ("mail", "default", "new")]
    with second_connection.transaction():
        second_connection.execute("SELECT FROM pgqueue_queue FOR UPDATE")
        second_connection.execute("SELECT FROM pgqueue_worker FOR UPDATE")
        assert work() == 0
    assert [double.get_result(result.id).return_value for result in results] == [2, 2, 2]


@pytest.mark.case("K10")
def test_a_worker_needs_no_signal_handlers_of_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has none; the handlers of the process are all that is used."""

    def refuse(*args: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_signal_handler", refuse)
    results = [double.enqueue(1), contract_tasks.double_later.enqueue(1)]
    assert work() == 0
    assert [result.task.get_result(result.id).return_value for result in results] == [2, 2]


@override_settings(PGQUEUE={"LISTEN": False, "POLL_WITHOUT_LISTEN_SECONDS": 0.1})
def test_an_idle_worker_that_cannot_listen_polls(start: Callable[..., Inbox]) -> None:
    start()
    result = double.enqueue(1)
    _until(lambda: double.get_result(result.id).status == TaskResultStatus.SUCCESSFUL)


@override_settings(PGQUEUE={"LISTEN": False})
def test_an_idle_worker_sleeps_until_the_next_job_is_due(start: Callable[..., Inbox]) -> None:
    due_at = timezone.now() + timedelta(seconds=1)
    result = double.using(run_after=due_at).enqueue(1)
    start()
    _until(lambda: double.get_result(result.id).status == TaskResultStatus.SUCCESSFUL)
    finished_at = double.get_result(result.id).finished_at
    assert finished_at is not None
    assert timedelta(0) <= finished_at - due_at < timedelta(seconds=5)


def test_a_stop_lets_what_runs_end_and_gives_the_rest_back(start: Callable[..., Inbox]) -> None:
    first = contract_tasks.wait_for_gate.enqueue()
    others = enqueue_many(record.bind(number) for number in range(5))
    contract_tasks.gate.clear()
    contract_tasks.at_gate.clear()
    inbox = start(concurrency=1)
    _until(lambda: len(contract_tasks.at_gate) == 1)
    inbox.put(Signal.STOP)
    _until(lambda: not Job.objects.filter(state="running").exclude(pk=first.id).exists())
    contract_tasks.gate.set()
    _until(lambda: row(first.id).state == "succeeded")
    assert {(row(id).state, row(id).attempts) for id in others} == {("pending", 0)}
    assert recorded == []


# -- the command -------------------------------------------------------------------------------------------


@override_settings(PGQUEUE={"LISTEN": False})
def test_the_command_runs_what_is_due() -> None:
    result = double.enqueue(3)
    call_command("runworker", "--burst", "--concurrency", "1", verbosity=0)
    assert double.get_result(result.id).return_value == 6


@override_settings(PGQUEUE={"LISTEN": False})
@pytest.mark.case("B08")
def test_the_lease_of_the_command_line_is_the_lease_of_the_row() -> None:
    result = contract_tasks.tell_lease.enqueue()
    call_command("runworker", "--burst", "--lease-seconds", "120", verbosity=0)
    assert 110 < contract_tasks.tell_lease.get_result(result.id).return_value <= 120
    assert Worker.objects.get().lease_seconds == 120


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--queue", "a", "--exclude-queue", "b"], "--exclude-queue cannot be given beside it"),
        (["--database", "nowhere"], "There is no database 'nowhere'.*has: default"),
        (["--concurrency", "0"], "greater than zero"),
        (["--concurrency", "x"], "not a number"),
        (["--lease-seconds", "nan"], "greater than zero"),
        (["--lease-seconds", "inf"], "at most 3162240000"),
        (["--lease-seconds", "1e308"], "at most 3162240000"),
        (["--lease-seconds", "1e18"], "at most 3162240000"),
        (["--max-jobs", "-1"], "greater than zero"),
    ],
)
def test_the_command_refuses_what_makes_no_sense(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        call_command("runworker", "--burst", *arguments)


def test_the_command_says_when_the_tables_are_missing() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgqueue_worker RENAME TO pgqueue_worker_away")
    try:
        with pytest.raises(CommandError, match=r"run manage\.py migrate"):
            call_command("runworker", "--burst", verbosity=0)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE pgqueue_worker_away RENAME TO pgqueue_worker")


# -- cases that need nothing but a worker ------------------------------------------------------------------


@pytest.mark.case("A05")
def test_a_running_job_with_an_expired_lease_can_be_told_from_a_live_one() -> None:
    JobFactory.create_batch(3, expired=True)
    JobFactory.create_batch(2, running=True)
    running = Job.objects.filter(state="running")
    assert running.filter(lease_until__gt=from_now(0)).count() == 2
    assert running.filter(lease_until__lte=from_now(0)).count() == 3


@pytest.mark.case("A17")
def test_a_job_whose_arguments_cannot_be_decoded_ends() -> None:
    """The claim is committed before anything is decoded, so a crash there counts as a lost lease."""
    job = JobFactory(task=double.module_path)
    JobPayload.objects.create(job_id=job.id, args={"not": "a list"}, kwargs=[1])
    assert work() == 0
    job.refresh_from_db()
    assert (job.state, job.attempts) == ("dead", 1)


@pytest.mark.case("B20")
def test_a_lost_attempt_is_run_again_and_its_effects_happen_twice() -> None:
    """At least once: an undeclared task that was lost after its own commit commits again."""
    job = JobFactory(expired=True, task=record.module_path)
    JobPayload.objects.create(job_id=job.id, args=[1])
    recorded.append(1)
    assert work() == 0
    assert recorded == [1, 1]


@pytest.mark.case("G04")
def test_ten_thousand_failures_in_a_row_wait_as_long_as_the_cap() -> None:
    assert 0 < delay_seconds(10_000, base_seconds=0.1, cap_seconds=RECONNECT_CAP_SECONDS) <= 10


def test_retries_run_to_their_end() -> None:
    results = [contract_tasks.succeed_on_attempt.enqueue(number) for number in range(1, 5)]
    work_through_retries()
    assert [contract_tasks.succeed_on_attempt.get_result(result.id).return_value for result in results] == [1, 2, 3, 4]
