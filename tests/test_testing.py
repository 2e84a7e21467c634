"""The helpers that applications test with: in the test's transaction, and through the worker's own statements."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.models import Group
from django.core.exceptions import SynchronousOnlyOperation
from django.db import IntegrityError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase, TransactionTestCase, override_settings
from django.utils import timezone, translation

from pgqueue import Bury, registry, sql
from pgqueue.compat import TaskResultStatus, task_finished, task_started
from pgqueue.exceptions import JobNotFoundError, PayloadError
from pgqueue.models import Attempt, Job, Queue
from pgqueue.operations import Actor, act
from pgqueue.states import State
from pgqueue.testing import (
    WORKER_ID,
    RanJob,
    assert_enqueued,
    assert_not_enqueued,
    drain_jobs,
    enqueued,
    expire_lease,
    hold_lease,
    replay_stale_ending,
    run_jobs,
    take_over_now,
)
from tests.factories import QueueFactory
from tests.testapp import testing_tasks as tasks
from tests.testapp.testing_tasks import make_group, note, recorded

both = pytest.mark.parametrize(
    "database",
    [
        pytest.param("in a transaction", marks=pytest.mark.django_db),
        pytest.param(
            "in autocommit",
            marks=pytest.mark.django_db(transaction=True),
        ),
    ],
)
in_transaction = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _nothing_recorded() -> Iterator[None]:
    recorded.clear()
    yield
    tasks.left_open.clear()


def _states() -> dict[int, str]:
    return dict(Job.objects.order_by("id").values_list("id", "state"))


def _settings() -> list[str]:
    return tasks.tell_settings.call()


# -- running -----------------------------------------------------------------------------------------------


@both
@pytest.mark.case("J04")
def test_a_due_job_runs_in_the_test(database: str) -> None:
    result = make_group.enqueue("editors")
    (ran,) = run_jobs()
    group = Group.objects.get()
    assert ran == RanJob(int(result.id), make_group.module_path, State.SUCCEEDED, result=group.pk)
    result.refresh()
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, group.pk)
    assert run_jobs() == []


@in_transaction
@pytest.mark.case("J04")
def test_an_enqueue_is_one_query(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(1):
        note.enqueue(1)
    with django_assert_num_queries(1):
        note.using(operation_key="once").enqueue(1)


@pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
@pytest.mark.case("J04")
@override_settings(PGQUEUE={"NOTIFY": False})
def test_an_enqueue_in_autocommit_is_one_query_where_nobody_is_woken(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(1):
        note.enqueue(1)


@in_transaction
def test_only_the_queries_of_the_tasks_are_counted(django_assert_num_queries: Any) -> None:
    make_group.enqueue("editors")
    note.enqueue(1)
    with django_assert_num_queries(1):
        assert len(run_jobs()) == 2


@both
@pytest.mark.parametrize("task", [tasks.make_group, tasks.make_group_later], ids=["sync", "async"])
def test_sync_and_async_tasks_use_the_connection_of_the_test(database: str, task: Any) -> None:
    task.enqueue("editors")
    (ran,) = run_jobs(raise_errors=True)
    assert ran.result == Group.objects.get(name="editors").pk


@pytest.mark.django_db(transaction=True)
def test_an_asynchronous_test_runs_jobs_in_a_thread() -> None:
    async def test() -> list[Any]:
        await note.aenqueue(7)
        with pytest.raises(SynchronousOnlyOperation):
            run_jobs()
        return await sync_to_async(run_jobs)()

    assert [ran.result for ran in async_to_sync(test)()] == [7]


@both
def test_jobs_run_by_priority_then_time_then_id_over_all_queues_and_keys(database: str) -> None:
    an_hour_ago = timezone.now() - timedelta(hours=1)
    note.enqueue(3)
    note.using(queue_name="mail", shard_key="k").enqueue(4)
    note.using(queue_name="zoo").enqueue(5)
    note.using(priority=9, tenant="acme").enqueue(1)
    note.using(run_after=an_hour_ago, queue_name="mail", shard_key="k").enqueue(2)
    note.using(priority=-9).enqueue(6)
    assert len(run_jobs(raise_errors=True)) == 6
    assert recorded == [1, 2, 3, 4, 5, 6]


@both
def test_what_a_job_enqueues_is_left_for_the_next_call(database: str) -> None:
    tasks.enqueue_one_less.enqueue(2)
    assert [len(run_jobs()) for _ in range(4)] == [1, 1, 1, 0]
    assert recorded == [2, 1, 0]


@both
def test_certain_queues_and_no_more_than_a_limit(database: str) -> None:
    for number in range(4):
        note.using(queue_name="mail" if number % 2 else "default").enqueue(number)
    assert [ran.result for ran in run_jobs(queues=["mail", "missing"], limit=1)] == [1]
    assert [ran.result for ran in run_jobs(queues=["mail"])] == [3]
    assert [ran.result for ran in run_jobs(using="default")] == [0, 2]


@both
def test_a_job_that_is_not_due_waits(database: str) -> None:
    result = note.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
    assert run_jobs() == []
    assert _states() == {int(result.id): "pending"}


@both
def test_a_paused_queue_keeps_its_jobs_and_a_held_job_waits(database: str) -> None:
    QueueFactory(name="frozen", paused=True)
    frozen = note.using(queue_name="frozen").enqueue(1)
    held = note.enqueue(2)
    act("hold", held.id, version_seen=1, actor=Actor(id=None, name="tests"), reason="why")
    assert drain_jobs(include_future=True) == []
    assert _states() == {int(frozen.id): "pending", int(held.id): "paused"}
    Queue.objects.update(paused_at=None)
    assert [ran.job_id for ran in run_jobs()] == [int(frozen.id)]


@in_transaction
def test_a_job_of_an_unknown_task_waits_for_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    note.enqueue(1)
    monkeypatch.delitem(registry._tasks, note.module_path)
    assert run_jobs() == []
    assert drain_jobs(include_future=True) == []


@both
def test_a_job_takes_its_context(database: str) -> None:
    result = tasks.tell_context.using(operation_key="once").enqueue()
    (ran,) = run_jobs(raise_errors=True)
    assert ran.result == [int(result.id), 1, False, False, "once"]
    assert Job.objects.get().settled_by == WORKER_ID


@both
def test_a_job_sees_no_language_and_no_variable_of_the_test_and_leaves_none(database: str) -> None:
    tasks.look_around.enqueue()
    before = tasks.mood.set("wild")
    with translation.override("de"):
        (ran,) = run_jobs()
        assert translation.get_language() == "de"
    tasks.mood.reset(before)
    assert ran.result == ["en-us", "calm"]


@both
def test_arguments_and_results_are_those_that_come_back_from_the_database(database: str) -> None:
    note.enqueue({"pair": (1, 2), "large": 1e16})
    (ran,) = run_jobs()
    assert recorded == [{"pair": [1, 2], "large": 1e16}]
    assert ran.result == recorded[0]
    assert isinstance(recorded[0]["large"], float)


@both
def test_the_signals_are_those_of_a_worker(database: str) -> None:
    heard: list[tuple[str, str, str]] = []

    def on_started(sender: Any, task_result: Any, **kwargs: Any) -> None:
        heard.append(("started", task_result.id, task_result.status))

    def on_finished(sender: Any, task_result: Any, **kwargs: Any) -> None:
        heard.append(("finished", task_result.id, task_result.status))
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")

    task_started.connect(on_started)
    task_finished.connect(on_finished)
    try:
        good, bad = note.enqueue(1), tasks.succeed_at.using(max_attempts=2).enqueue(9)
        drain_jobs(include_future=True)
    finally:
        task_started.disconnect(on_started)
        task_finished.disconnect(on_finished)
    assert heard == [
        ("started", good.id, "RUNNING"),
        ("finished", good.id, "SUCCESSFUL"),
        ("started", bad.id, "RUNNING"),
        ("started", bad.id, "RUNNING"),
        ("finished", bad.id, "FAILED"),
    ]
    assert Job.objects.count() == 2


# -- failures ----------------------------------------------------------------------------------------------


@both
def test_an_exception_ends_the_attempt_and_not_the_test(database: str) -> None:
    result = tasks.fail.enqueue("password=S3CRET")
    (ran,) = run_jobs()
    assert (ran.state, ran.result, ran.error_class) == ("retrying", None, "builtins.ConnectionError")
    assert ran.error_message == "password=[redacted]"
    result.refresh()
    assert [error.exception_class_path for error in result.errors] == ["builtins.ConnectionError"]
    assert run_jobs() == []


@both
@pytest.mark.parametrize(
    ("task", "error_class"),
    [
        (tasks.give_up, "pgqueue.exceptions.Bury"),
        (tasks.return_set, "pgqueue.exceptions.ResultError"),
    ],
    ids=["bury", "result"],
)
def test_what_no_repetition_helps_is_dead_at_once(database: str, task: Any, error_class: str) -> None:
    task.enqueue()
    (ran,) = run_jobs()
    assert (ran.state, ran.error_class) == (State.DEAD, error_class)


@both
def test_a_retry_waits_as_long_as_it_asked(database: str) -> None:
    tasks.ask_again.enqueue(300)
    (ran,) = run_jobs()
    assert ran.state == "retrying"
    assert 290 < (Job.objects.get().run_at - timezone.now()).total_seconds() < 301


@both
def test_the_first_exception_can_be_raised_after_its_ending_is_written(database: str) -> None:
    failed, left = tasks.fail.enqueue("no"), note.enqueue(1)
    with pytest.raises(ConnectionError, match="no") as raised:
        run_jobs(raise_errors=True)
    assert raised.traceback[-1].name == "fail"
    assert _states() == {int(failed.id): "retrying", int(left.id): "pending"}
    tasks.give_up.enqueue()
    with pytest.raises(Bury):
        drain_jobs(raise_errors=True)


@both
@pytest.mark.parametrize(
    ("task", "error"),
    [(tasks.interrupt, KeyboardInterrupt), (tasks.fail_the_test, pytest.fail.Exception)],
    ids=["Ctrl-C", "pytest.fail"],
)
def test_what_is_meant_for_the_test_reaches_it(database: str, task: Any, error: type[BaseException]) -> None:
    task.enqueue()
    with pytest.raises(error):
        run_jobs()
    assert Job.objects.get().state == "retrying"


@both
def test_a_task_that_exits_does_not_end_the_test(database: str) -> None:
    tasks.exit_process.enqueue()
    (ran,) = run_jobs()
    assert (ran.state, ran.error_class) == ("retrying", "builtins.SystemExit")


# -- the test's transaction --------------------------------------------------------------------------------


@in_transaction
@pytest.mark.case("J06")
@pytest.mark.case("J10")
def test_a_database_error_is_recorded_and_the_test_goes_on() -> None:
    mine = Group.objects.create(name="mine")
    tasks.insert_twice.enqueue("mine twice")
    note.enqueue(1)
    failed, ran = run_jobs()
    assert (failed.state, failed.error_class) == ("retrying", "django.db.utils.IntegrityError")
    assert ran.state == "succeeded"
    assert list(Group.objects.all()) == [mine]


@pytest.mark.django_db(transaction=True)
def test_in_autocommit_what_was_written_before_a_database_error_stays_as_in_a_worker() -> None:
    tasks.insert_twice.enqueue("kept")
    tasks.insert_twice_and_swallow.enqueue("kept too")
    assert [ran.state for ran in run_jobs()] == ["retrying", "succeeded"]
    assert Group.objects.count() == 2


@in_transaction
def test_a_swallowed_database_error_is_told_and_what_it_lost() -> None:
    mine = Group.objects.create(name="mine")
    tasks.insert_twice_and_swallow.enqueue("lost")
    with pytest.raises(TransactionManagementError, match=r"insert_twice_and_swallow caught a database error outside"):
        run_jobs()
    assert (recorded, list(Group.objects.all())) == (["swallowed"], [mine])


@both
def test_blocks_of_a_task_work_as_they_do_elsewhere(database: str) -> None:
    tasks.insert_twice_in_block.enqueue("once")
    tasks.write_durably.enqueue("durable")
    assert [ran.state for ran in run_jobs(raise_errors=True)] == ["succeeded", "succeeded"]
    assert set(Group.objects.values_list("name", flat=True)) == {"once", "durable"}


@both
def test_what_a_task_wrote_before_its_exception_stays(database: str) -> None:
    tasks.fail_after_write.enqueue("kept")
    run_jobs()
    assert Group.objects.get().name == "kept"


@in_transaction
def test_a_block_without_a_savepoint_does_not_doom_the_test() -> None:
    tasks.fail_in_block_without_savepoint.enqueue("lost")
    (ran,) = run_jobs()
    assert (ran.state, ran.error_class) == ("retrying", "builtins.ConnectionError")
    assert Group.objects.count() == 0


@both
@pytest.mark.case("J06")
def test_a_block_left_open_is_discarded_and_those_of_the_test_are_not(database: str) -> None:
    with transaction.atomic():
        mine = Group.objects.create(name="mine")
        tasks.leave_block_open.enqueue("lost")
        (ran,) = run_jobs()
        assert ran.state == "succeeded"
        assert list(Group.objects.all()) == [mine]
    assert list(Group.objects.all()) == [mine]


@pytest.mark.django_db(transaction=True)
def test_in_autocommit_a_block_left_open_is_discarded_too() -> None:
    result = tasks.leave_block_open.enqueue("lost")
    run_jobs()
    assert not connection.in_atomic_block
    assert Group.objects.count() == 0
    assert _states() == {int(result.id): "succeeded"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.case("J06")
def test_an_open_block_commits_what_the_test_and_its_jobs_wrote() -> None:
    with transaction.atomic():
        Group.objects.create(name="mine")
        make_group.enqueue("the job's")
        tasks.fail.enqueue()
        run_jobs()
        assert connection.in_atomic_block
    other = connections["default"].copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT (SELECT count(*) FROM auth_group), (SELECT count(*) FROM pgqueue_job)")
            assert cursor.fetchone() == (2, 2)
    finally:
        other.close()


@pytest.mark.django_db(transaction=True)
def test_an_open_block_rolls_back_what_its_jobs_wrote() -> None:
    result = make_group.enqueue("the job's")
    with transaction.atomic():
        assert run_jobs()[0].state == "succeeded"
        transaction.set_rollback(True)
    assert _states() == {int(result.id): "pending"}
    assert Group.objects.count() == 0


@pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
def test_a_block_in_which_nothing_was_sent_yet_is_not_committed_by_the_first_claim() -> None:
    result = note.enqueue(1)
    for claim in (run_jobs, lambda: hold_lease(result.id)):
        with transaction.atomic():
            claim()
            transaction.set_rollback(True)
        assert _states() == {int(result.id): "pending"}


@in_transaction
def test_an_aborted_transaction_is_told_before_anything_is_claimed() -> None:
    note.enqueue(1)
    with transaction.atomic():
        with connection.cursor() as cursor, pytest.raises(Exception, match="division"):
            cursor.execute("SELECT 1 / 0")
        for call in (run_jobs, drain_jobs, take_over_now):
            with pytest.raises(TransactionManagementError, match="No job can run: an earlier database error"):
                call()
        transaction.set_rollback(True)


@in_transaction
def test_a_transaction_doomed_by_django_is_told_too() -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError, match="No job can run"):
            run_jobs()


@pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
def test_a_task_that_closes_the_connection_of_a_transaction_is_told() -> None:
    with transaction.atomic():
        tasks.close_connection.enqueue()
        with pytest.raises(TransactionManagementError, match="closed the database connection"):
            run_jobs()
    tasks.close_connection.enqueue()
    assert run_jobs()[0].state == "succeeded"


@in_transaction
def test_bounds_of_the_queues_own_statements_do_not_outlive_them() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '77s'")
    before = _settings()
    result = tasks.tell_settings.enqueue()
    (ran,) = run_jobs()
    assert (ran.result, _settings()) == (before, before)
    hold_lease(tasks.fail.enqueue().id)
    take_over_now()
    result.refresh()
    assert _settings() == before


def test_every_setting_of_the_guard_is_put_back() -> None:
    changed, *both_ways = (
        re.findall(r"set(?:_config|ting)\(\s*'(\w+)'", sql.load(name))
        for name in ("guard_transaction", "read_guards", "restore_guards")
    )
    assert changed == both_ways[0] == both_ways[1]


@in_transaction
def test_hooks_wait_for_a_commit_and_go_with_what_was_rolled_back(
    django_capture_on_commit_callbacks: Any,
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        tasks.plan.enqueue()
        tasks.plan_and_fail.enqueue()
        assert [ran.state for ran in run_jobs()] == ["succeeded", "dead"]
        assert recorded == []
    assert recorded == ["hook ran"]


# -- draining ----------------------------------------------------------------------------------------------


@both
def test_a_drain_runs_what_jobs_enqueue(database: str) -> None:
    tasks.enqueue_one_less.enqueue(3)
    assert [ran.state for ran in drain_jobs()] == ["succeeded"] * 4
    assert recorded == [3, 2, 1, 0]


@both
def test_a_drain_leaves_the_future_unless_it_is_asked_for(database: str) -> None:
    later = timezone.now() + timedelta(hours=2)
    note.using(run_after=later).enqueue("late")
    note.using(run_after=later - timedelta(hours=1), queue_name="mail").enqueue("soon")
    tasks.succeed_at.enqueue(3)
    assert [ran.state for ran in drain_jobs()] == ["retrying"]
    assert [ran.state for ran in drain_jobs(include_future=True, queues=["default"])] == [
        "retrying",
        "succeeded",
        "succeeded",
    ]
    assert recorded == ["late"]
    assert Attempt.objects.filter(outcome="failed").count() == 2
    assert [ran.result for ran in drain_jobs(include_future=True)] == ["soon"]


@both
def test_a_drain_takes_what_waits_in_the_order_of_its_time(database: str) -> None:
    now = timezone.now()
    for days in (3, 1, 2):
        note.using(run_after=now + timedelta(days=days), priority=days).enqueue(days)
    drain_jobs(include_future=True)
    assert recorded == [1, 2, 3]


@both
def test_a_drain_uses_up_the_attempts(database: str) -> None:
    tasks.fail.enqueue()
    assert [ran.state for ran in drain_jobs(include_future=True)] == ["retrying", "retrying", "dead"]


@in_transaction
def test_a_drain_without_end_is_told() -> None:
    tasks.enqueue_itself.enqueue()
    with pytest.raises(RuntimeError, match=r"More than 20 jobs ran.*testing_tasks\.enqueue_itself"):
        drain_jobs(max_jobs=20)
    note.enqueue(1)
    assert len(run_jobs(limit=5)) == 2


@in_transaction
def test_a_drain_of_exactly_as_many_jobs_is_fine() -> None:
    tasks.enqueue_one_less.enqueue(4)
    assert len(drain_jobs(max_jobs=5)) == 5


# -- looking -----------------------------------------------------------------------------------------------


@both
def test_what_was_enqueued_is_told_with_all_that_it_was_given(database: str) -> None:
    at = timezone.now().replace(microsecond=0) + timedelta(hours=1)
    mail = note.using(
        queue_name="mail", priority=5, run_after=at, tenant="acme", shard_key="k", operation_key="once"
    ).enqueue(value=(1, 2))
    plain = tasks.give_up.enqueue()
    first, second = enqueued()
    assert (first.id, first.task, first.queue, first.args, first.kwargs, first.priority, first.run_at) == (
        int(mail.id),
        note.module_path,
        "mail",
        [],
        {"value": [1, 2]},
        5,
        at,
    )
    assert (first.tenant, first.shard_key, first.operation_key, first.state) == ("acme", "k", "once", "pending")
    assert (second.id, second.args, second.kwargs) == (int(plain.id), [], {})
    assert enqueued(note) == enqueued(note.module_path) == enqueued(queue="mail") == [first]
    run_jobs()
    assert [job.id for job in enqueued(state="dead")] == [int(plain.id)]
    assert enqueued(note, state="dead") == []


@in_transaction
def test_what_a_block_enqueues_is_there_at_once(django_capture_on_commit_callbacks: Any) -> None:
    with django_capture_on_commit_callbacks() as callbacks:
        note.enqueue(1)
        assert_enqueued(note, 1)
    assert len(callbacks) == 1
    with transaction.atomic():
        note.enqueue(2)
        transaction.set_rollback(True)
    assert_not_enqueued(note, 2)


@both
def test_an_assertion_finds_the_job_and_returns_it(database: str) -> None:
    first, second = note.enqueue(1), note.using(queue_name="mail").enqueue(value=(1, "ß"))
    assert assert_enqueued(note).id == int(first.id)
    assert assert_enqueued(note, 1).id == int(first.id)
    assert assert_enqueued(note.module_path, value=[1, "ß"]).queue == "mail"
    run_jobs()
    assert assert_enqueued(note, value=(1, "ß")).id == int(second.id)
    assert_not_enqueued(note, 2)
    assert_not_enqueued(tasks.give_up)


@in_transaction
def test_a_failed_assertion_lists_what_there_is() -> None:
    with pytest.raises(AssertionError, match=r"note\(7\) was not enqueued\. No job was\.$"):
        assert_enqueued(note, 7)
    other = tasks.give_up.enqueue()
    with pytest.raises(
        AssertionError, match=rf"There are:\n  job {other.id}: .*give_up\(\), pending in queue 'default'$"
    ):
        assert_enqueued(note, 7)
    near = note.using(queue_name="mail").enqueue(8)
    note.enqueue(value="x")
    with pytest.raises(AssertionError) as raised:
        assert_enqueued(note, 7, value=1)
    assert str(raised.value).splitlines()[:2] == [
        "tests.testapp.testing_tasks.note(7, value=1) was not enqueued. There are:",
        f"  job {near.id}: tests.testapp.testing_tasks.note(8), pending in queue 'mail'",
    ]
    assert "give_up" not in str(raised.value)
    with pytest.raises(AssertionError, match=rf"note\(8\) was enqueued: job {near.id}: "):
        assert_not_enqueued(note, 8)
    with pytest.raises(AssertionError, match=r"note\(\) was enqueued: job"):
        assert_not_enqueued(note)


@in_transaction
def test_a_long_list_is_cut() -> None:
    for number in range(25):
        note.enqueue(number)
    with pytest.raises(AssertionError, match=r"and 5 more$"):
        assert_enqueued(note, 99)


@in_transaction
def test_arguments_that_nobody_can_enqueue_are_told() -> None:
    note.enqueue(1)
    with pytest.raises(PayloadError, match=r"args\[0\]"):
        assert_enqueued(note, {1, 2})


# -- leases ------------------------------------------------------------------------------------------------


@both
def test_a_lost_job_is_taken_over_and_its_owner_is_refused(database: str) -> None:
    result = note.enqueue(1)
    lease = hold_lease(result.id)
    assert (lease.id, lease.worker_id, Job.objects.get().state) == (int(result.id), WORKER_ID, "running")
    assert run_jobs() == []
    assert take_over_now() == {}
    expire_lease(result.id)
    assert take_over_now() == {lease.id: State.RETRYING}
    assert replay_stale_ending(lease) is True
    (ran,) = run_jobs()
    assert ran.state == "succeeded"
    assert replay_stale_ending(lease) is True
    assert [(attempt.outcome, attempt.number) for attempt in Attempt.objects.order_by("id")] == [
        ("lost", 1),
        ("succeeded", 1),
    ]


@both
def test_an_ending_after_the_lease_ran_out_counts_until_somebody_takes_over(database: str) -> None:
    lease = hold_lease(note.enqueue(1).id)
    expire_lease(lease.id)
    assert replay_stale_ending(lease) is False
    assert Job.objects.get().state == "succeeded"


@both
def test_a_task_hears_that_its_lease_is_lost(database: str) -> None:
    tasks.lose_own_lease.enqueue()
    (ran,) = run_jobs(raise_errors=True)
    assert (recorded, ran.state, ran.result) == ([False, True], "retrying", None)


@both
def test_a_busy_shard_key_keeps_the_next_job_waiting(database: str) -> None:
    first, second = (note.using(shard_key="k").enqueue(number) for number in (1, 2))
    lease = hold_lease(first.id)
    assert run_jobs() == []
    with pytest.raises(RuntimeError, match=rf"Job {second.id} is pending and cannot be claimed now"):
        hold_lease(second.id)
    assert replay_stale_ending(lease) is False
    assert [ran.result for ran in run_jobs()] == [2]


@in_transaction
def test_helpers_say_why_a_lease_cannot_be_had_or_lost() -> None:
    result = note.enqueue(1)
    with pytest.raises(RuntimeError, match=rf"Job {result.id} is pending: only a running job has a lease"):
        expire_lease(result.id)
    run_jobs()
    with pytest.raises(RuntimeError, match=rf"Job {result.id} is succeeded and cannot be claimed"):
        hold_lease(result.id)
    for helper in (hold_lease, expire_lease):
        with pytest.raises(JobNotFoundError):
            helper(2**40)


# -- unittest, pytest and nobody ---------------------------------------------------------------------------


class InTestCase(TestCase):
    """The case of the field: nothing is ever committed here."""

    @classmethod
    def setUpTestData(cls) -> None:
        cls.result = make_group.enqueue("of the class")

    def test_a_job_runs_and_its_effect_is_seen(self) -> None:
        with self.assertNumQueries(1):
            note.enqueue(1)
        with self.captureOnCommitCallbacks(execute=True):
            note.enqueue(2)
            assert [ran.state for ran in drain_jobs()] == ["succeeded"] * 3
        assert Group.objects.get().name == "of the class"

    def test_the_job_of_the_class_is_as_new(self) -> None:
        assert enqueued(state="pending")[0].id == int(self.result.id)

    def test_an_uncaught_database_error_leaves_the_test_whole(self) -> None:
        Group.objects.create(name="mine")
        tasks.insert_twice.enqueue("lost")
        with pytest.raises(IntegrityError):
            run_jobs(raise_errors=True)
        assert set(Group.objects.values_list("name", flat=True)) == {"mine", "of the class"}


class InTransactionTestCase(TransactionTestCase):
    def test_a_job_runs_and_its_effect_is_seen(self) -> None:
        make_group.enqueue("editors")
        assert [ran.state for ran in run_jobs()] == ["succeeded"]
        assert Group.objects.get().name == "editors"


def test_the_fixture_brings_the_database_and_the_helpers(pgqueue_jobs: SimpleNamespace) -> None:
    assert connection.in_atomic_block
    note.enqueue(1)
    assert pgqueue_jobs.assert_enqueued(note, 1) == pgqueue_jobs.enqueued()[0]
    pgqueue_jobs.assert_not_enqueued(note, 2)
    assert len(pgqueue_jobs.run()) == 1
    tasks.succeed_at.enqueue(2)
    assert len(pgqueue_jobs.drain(include_future=True)) == 2


@pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
def test_the_fixture_hears_the_mark(pgqueue_jobs: SimpleNamespace) -> None:
    assert not connection.in_atomic_block
    note.enqueue(1)
    assert len(pgqueue_jobs.run()) == 1


def test_the_plugin_loads_neither_the_helpers_nor_settings() -> None:
    code = (
        "import sys, pgqueue.pytest_plugin\n"
        "from django.conf import settings\n"
        "assert not settings.configured\n"
        "assert not {'pgqueue.testing', 'pgqueue.models', 'pgqueue.worker'} & set(sys.modules)\n"
    )
    assert _python(code).returncode == 0


def test_a_project_without_django_never_notices_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "test_alone.py").write_text("def test_alone():\n    pass\n")
    ran = _python(
        "import sys, pytest\n"
        "off = [f'-pno:{name}' for name in ('cacheprovider', 'django', 'randomly')]\n"
        "sys.exit(pytest.main(['-q', *off, 'test_alone.py']))\n",
        cwd=tmp_path,
    )
    assert (ran.returncode, "1 passed" in ran.stdout) == (0, True), ran.stdout + ran.stderr


def test_the_helpers_need_no_pytest() -> None:
    code = (
        "import sys\n"
        "sys.modules['pytest'] = None\n"
        "import os, django\n"
        "os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'\n"
        "django.setup()\n"
        "import pgqueue.testing\n"
    )
    ran = _python(code)
    assert ran.returncode == 0, ran.stderr


def _python(code: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
