"""Tasks whose body and completion are one transaction."""

from __future__ import annotations

import threading
from typing import Any

import psycopg
import pytest
from django.db import connection, connections, transaction

from pgqueue import task
from pgqueue.compat import InvalidTask
from pgqueue.exceptions import EffectRefusedError
from pgqueue.models import Attempt, Job, Queue
from pgqueue.protocol import pipelining
from pgqueue.states import State
from pgqueue.testing import expire_lease, run_jobs, take_over_now
from tests.factories import QueueFactory
from tests.inline import row, work, work_through_retries, work_together
from tests.testapp import effect_tasks
from tests.testapp.effect_tasks import Remote, manual, transactional

quick = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])


async def nothing() -> None: ...


def enqueue(body: Any, *, of: Any = transactional, name: str = "run") -> int:
    effect_tasks.script[name] = body
    return int(of.enqueue(name).id)


@committing
def test_what_the_body_wrote_and_the_completion_are_committed_together():
    seen = []

    def body(context):
        QueueFactory(name="written")
        with connect_apart() as other:
            seen.append(other.execute("SELECT count(*) FROM pgqueue_queue WHERE name = 'written'").fetchone())
        return 7

    id = enqueue(body)
    work()
    assert (row(id).state, row(id).attempts, Queue.objects.filter(name="written").count()) == (State.SUCCEEDED, 1, 1)
    assert seen == [(0,)], "nobody else saw it before the end"
    assert transactional.get_result(str(id)).return_value == 7


def connect_apart() -> Any:
    params = connection.get_connection_params()
    for name in ("context", "cursor_factory", "prepare_threshold"):
        params.pop(name, None)
    return psycopg.connect(**params, autocommit=True)


@committing
@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(1)])
def test_a_body_that_raises_leaves_nothing(error):
    def body(context):
        QueueFactory(name="written")
        raise error

    id = enqueue(body)
    work(max_jobs=1)
    assert row(id).state == State.RETRYING
    assert not Queue.objects.filter(name="written").exists()


@committing
def test_a_result_that_cannot_be_stored_leaves_nothing():
    def body(context):
        QueueFactory(name="written")
        return object()

    id = enqueue(body)
    work()
    assert row(id).state == State.DEAD
    assert not Queue.objects.filter(name="written").exists()


def lose():
    """Take every lease away, in a thread and a session of its own."""
    Job.objects.update(lease_until="2000-01-01T00:00Z")
    take_over_now()
    connections.close_all()


@committing
@pytest.mark.case("B20")
def test_a_lost_lease_rolls_the_body_back():
    """The takeover comes from another session, as from another worker, while the body runs."""

    def body(context):
        QueueFactory(name="written")
        thread = threading.Thread(target=lose)
        thread.start()
        thread.join()

    id = enqueue(body)
    work(max_jobs=1)
    assert row(id).state == State.RETRYING
    assert not Queue.objects.filter(name="written").exists()
    attempt = Attempt.objects.get(job_id=id)
    assert (attempt.outcome, attempt.evidence[0]["error_class"]) == ("lost", "pgqueue.exceptions.LeaseLostError")


@committing
@pytest.mark.parametrize("sends", [False, True])
def test_hooks_run_once_the_completion_is_committed(sends):
    """Also where the body sends nothing, and the completion is all that there is to commit."""
    seen = []

    def body(context):
        if sends:
            QueueFactory(name="written")
        transaction.on_commit(lambda: seen.append(row(id).state))

    id = enqueue(body)
    work()
    assert seen == [State.SUCCEEDED]
    assert (row(id).attempts, row(id).version) == (1, 3)


@committing
def test_a_lost_lease_runs_no_hook_where_the_body_sent_nothing():
    hooks = []

    def body(context):
        transaction.on_commit(lambda: hooks.append("ran"))
        thread = threading.Thread(target=lose)
        thread.start()
        thread.join()

    id = enqueue(body)
    work(max_jobs=1)
    assert (row(id).state, hooks) == (State.RETRYING, [])


@committing
def test_the_dispatcher_does_not_write_again_what_a_body_committed(monkeypatch):
    sent = []
    monkeypatch.setattr(pipelining, "send", lambda *_, endings, **__: sent.extend(endings) or [])
    id = enqueue(lambda context: QueueFactory(name="written") and None)
    work()
    assert (row(id).state, sent) == (State.SUCCEEDED, [])


@quick
def test_an_effect_inside_is_an_error():
    remote = Remote()
    enqueue(lambda context: context.effect("pay", remote))
    with pytest.raises(EffectRefusedError, match="rolled back"):
        run_jobs(raise_errors=True)
    assert remote.asked == []


@quick
def test_it_runs_in_a_test_too():
    enqueue(lambda context: 7)
    (ran,) = run_jobs()
    assert (ran.state, ran.result) == (State.SUCCEEDED, 7)


@quick
def test_a_lease_that_is_lost_in_a_test_rolls_back_too():
    def body(context):
        QueueFactory(name="written")
        expire_lease(context.job_id)
        take_over_now()

    enqueue(body)
    run_jobs()
    assert not Queue.objects.filter(name="written").exists()


# deadlocks and serialization failures


def failing(sqlstate: str, times: int) -> Any:
    """Return a body that the server refuses so many times, with a real error of that code."""
    tries = []

    def body(context):
        tries.append(context.attempt)
        QueueFactory(name=f"try{len(tries)}")
        if len(tries) <= times:
            with connection.cursor() as cursor:
                cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{sqlstate}'; END $$")
        return len(tries)

    return body, tries


@committing
@pytest.mark.parametrize("sqlstate", ["40P01", "40001"])
def test_a_body_is_repeated_in_place_without_a_charge(sqlstate):
    body, tries = failing(sqlstate, 3)
    id = enqueue(body)
    work()
    assert (row(id).state, row(id).attempts, tries) == (State.SUCCEEDED, 1, [1, 1, 1, 1])
    assert list(Queue.objects.filter(name__startswith="try").values_list("name", flat=True)) == ["try4"]


@committing
def test_the_fourth_failure_ends_the_attempt():
    body, tries = failing("40P01", 4)
    id = enqueue(body)
    work(max_jobs=1)
    assert (row(id).state, len(tries)) == (State.RETRYING, 4)
    assert Attempt.objects.get(job_id=id).failure_class == "deadlock"
    work_through_retries()
    assert row(id).state == State.SUCCEEDED


@committing
def test_any_other_task_is_not_repeated_in_place():
    body, tries = failing("40P01", 1)
    id = enqueue(body, of=manual)
    work(max_jobs=1)
    assert (row(id).state, len(tries)) == (State.RETRYING, 1)


@committing
def test_a_real_deadlock_is_survived_by_both():
    """Two bodies lock the same two rows in opposite order, each after the other has its first."""
    for name in ("a", "b"):
        QueueFactory(name=name)
    both_have_one = threading.Barrier(2)
    order = {"first": ("a", "b"), "second": ("b", "a")}
    met = set()

    def body_of(name):
        def body(context):
            one, other = order[name]
            Queue.objects.select_for_update().get(name=one)
            if name not in met:
                met.add(name)
                both_have_one.wait(10)
            Queue.objects.select_for_update().get(name=other)

        return body

    ids = [enqueue(body_of(name), name=name) for name in order]
    work()
    assert [(row(id).state, row(id).attempts) for id in ids] == [(State.SUCCEEDED, 1)] * 2


# locks on business keys


@committing
def test_keys_are_locked_in_one_order_for_everybody():
    """The same two keys in opposite order, each job after the other has begun: neither fails, none is repeated."""
    begun = threading.Barrier(2)
    tries = []

    def body_of(*keys):
        def body(context):
            tries.append(keys)
            begun.wait(10)
            context.lock(*keys)

        return body

    ids = [enqueue(body_of("a", "b"), name="first"), enqueue(body_of("b", "a"), name="second")]
    work()
    assert [row(id).state for id in ids] == [State.SUCCEEDED] * 2
    assert len(tries) == 2


@committing
def test_a_key_is_held_by_one_until_its_transaction_ends(in_background, wait_until_blocking):
    id = enqueue(lambda context: context.lock("card:7"))
    with connect_apart() as holder, holder.transaction():
        holder.execute("SELECT pg_advisory_xact_lock(hashtextextended('card:7', 1))")
        working = in_background(work_together, 1)
        wait_until_blocking(holder)
        assert row(id).state == State.RUNNING
    working.result()
    assert row(id).state == State.SUCCEEDED


@committing
def test_a_lock_without_a_transaction_is_an_error():
    id = enqueue(lambda context: context.lock("a"), of=manual)
    work(max_jobs=1)
    assert row(id).last_error_class == "django.db.transaction.TransactionManagementError"
    assert "none is open on database 'default'" in row(id).last_error


# what cannot be declared


def test_a_coroutine_function_cannot_be_transactional():
    with pytest.raises(InvalidTask, match="needs a plain function"):
        task(recovery="transactional")(nothing)
