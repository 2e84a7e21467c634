"""New rows, on the caller's Django connection."""

import pytest
from django.db import connection, transaction

from pgqueue.models import Job, JobPayload, OperationKey
from pgqueue.protocol.inserting import Inserted, NewJob, Spent, insert, insert_many, insert_once
from pgqueue.protocol.reading import read_job
from pgqueue.states import Lane
from tests.factories import TASK, JobFactory, OperationKeyFactory
from tests.statements.doing import end, ending

quick = pytest.mark.django_db
racing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
NEW = NewJob(
    queue="mail",
    task=TASK,
    args='[1, "é"]',
    kwargs='{"a": null}',
    priority=7,
    lane=Lane.LANED,
    max_attempts=3,
    recovery="idempotent",
    tenant="acme",
    shard_key="k",
    max_run_seconds=60,
)
BARE = NewJob(
    queue="default",
    task=TASK,
    args=None,
    kwargs=None,
    priority=0,
    lane=Lane.PLAIN,
    max_attempts=8,
    recovery="undeclared",
)
FIELDS = ("queue", "task", "priority", "lane", "max_attempts", "recovery", "tenant", "shard_key", "max_run_seconds")


def one(new):
    return insert("default", new).id


def one_of_many(new):
    return many([new])[0]


def many(news):
    bare = [new._replace(args=None, kwargs=None) for new in news]
    return insert_many("default", bare, args=[new.args for new in news], kwargs=[new.kwargs for new in news])


def one_once(new):
    return insert_once("default", new, operation_key="k", digest="d").id


every_way = pytest.mark.parametrize("enqueue", [one, one_of_many, one_once])


@quick
@every_way
@pytest.mark.parametrize("new", [NEW, BARE], ids=["full", "bare"])
def test_a_job_is_born_as_it_was_given(enqueue, new):
    row = Job.objects.get(id=enqueue(new))
    assert {name: getattr(row, name) for name in FIELDS} == {name: getattr(new, name) for name in FIELDS}
    assert (row.state, row.stage, row.version, row.fence, row.attempts) == ("pending", "not_called", 1, 0, 0)
    assert row.run_at == row.created_at
    assert (row.lease_losses, row.unknown_effects, row.worker_id) == (0, 0, None)
    assert JobPayload.objects.filter(job_id=row.id).exists() == (new.args is not None)
    assert row.operation_key == ("k" if enqueue is one_once else None)


@quick
@every_way
def test_a_run_at_is_kept(enqueue, session):
    run_at = session.execute("SELECT statement_timestamp() + '1 hour'").fetchone()[0]
    assert Job.objects.get(id=enqueue(BARE._replace(run_at=run_at))).run_at == run_at


@quick
@every_way
@pytest.mark.parametrize("half", [{"args": "[1]", "kwargs": None}, {"args": None, "kwargs": '{"a": 1}'}])
def test_half_a_payload_is_a_payload(enqueue, half):
    payload = JobPayload.objects.get(job_id=enqueue(BARE._replace(**half)))
    assert [payload.args is not None, payload.kwargs is not None] == [value is not None for value in half.values()]


@quick
def test_many_ids_come_in_the_order_of_the_input():
    queues = [f"q{n % 7}" for n in range(1_000)]
    ids = many([BARE._replace(queue=queue) for queue in queues])
    assert ids == sorted(ids)
    assert len(set(ids)) == 1_000
    stored = dict(Job.objects.values_list("id", "queue"))
    assert [stored[id] for id in ids] == queues


@quick
def test_payloads_of_many_are_not_shifted():
    ids = many([BARE._replace(args=f"[{n}]" if n % 2 else None) for n in range(9)])
    stored = dict(JobPayload.objects.values_list("job_id", "args"))
    assert stored == {id: [n] for n, id in enumerate(ids) if n % 2}


@quick
@pytest.mark.parametrize("new", [NEW._replace(args=None, kwargs=None), BARE], ids=["full", "bare"])
def test_many_that_are_alike_are_as_many_as_were_asked_for(new):
    ids = many([new] * 1_000)
    assert ids == sorted(set(ids))
    rows = Job.objects.filter(id__in=ids)
    assert list(rows.values_list(*FIELDS).distinct()) == [tuple(getattr(new, name) for name in FIELDS)]
    assert (rows.count(), JobPayload.objects.count()) == (1_000, 0)


@quick
def test_a_spent_key_names_the_first_job_and_its_arguments():
    first = insert_once("default", BARE, operation_key="k", digest="d1")
    again = insert_once("default", BARE, operation_key="k", digest="d2")
    assert isinstance(first, Inserted)
    assert again == Spent(first.id, first.created_at, "d1")
    assert Job.objects.count() == 1


@quick
@pytest.mark.case("E14")
def test_a_key_belongs_to_its_task():
    first = insert_once("default", BARE, operation_key="k", digest="d")
    second = insert_once("default", BARE._replace(task="tests.testapp.tasks.echo"), operation_key="k", digest="d")
    assert isinstance(second, Inserted)
    assert first.id != second.id


@quick
def test_a_key_stays_spent_when_its_job_is_gone():
    key = OperationKeyFactory(key="k")
    spent = insert_once("default", BARE, operation_key="k", digest="d")
    assert (spent.id, spent.digest) == (key.job_id, key.digest)


@racing
@pytest.mark.parametrize("enqueue", [one, one_once])
def test_a_job_appears_with_the_callers_commit_and_not_before(enqueue, queue_connection):
    with transaction.atomic():
        enqueue(NEW)
        assert queue_connection.execute("SELECT count(*) FROM pgqueue_job").fetchone() == (0,)
    assert queue_connection.execute("SELECT count(*) FROM pgqueue_job").fetchone() == (1,)


@racing
def test_a_rolled_back_enqueue_leaves_neither_job_nor_spent_key(queue_connection):
    with transaction.atomic():
        one_once(NEW)
        transaction.set_rollback(True)
    counts = [Job.objects.count(), JobPayload.objects.count(), OperationKey.objects.count()]
    assert counts == [0, 0, 0]


def in_a_thread(work):
    try:
        return work()
    finally:
        connection.close()


@racing
@pytest.mark.case("E11")
@pytest.mark.parametrize("commits", [True, False])
def test_the_second_of_two_enqueues_of_a_key_waits_for_the_first(
    queue_connection, wait_until_blocking, in_background, commits
):
    """The winner's commit gives its id, the winner's rollback a job of one's own."""
    with queue_connection.transaction(force_rollback=not commits):
        queue_connection.execute(
            "INSERT INTO pgqueue_operationkey (job_id, created_at, task, key, digest)"
            " VALUES (4711, now(), %s, 'k', 'd')",
            [TASK],
        )
        second = in_background(in_a_thread, lambda: insert_once("default", BARE, operation_key="k", digest="d"))
        wait_until_blocking(queue_connection)
    assert (second.result().id == 4711) == commits
    assert isinstance(second.result(), Spent if commits else Inserted)
    assert Job.objects.count() == (0 if commits else 1)


@quick
def test_a_job_is_read_whole(session):
    job = JobFactory(running=True)
    end(session, ending("complete", job, result='{"n": 1}'))
    row, attempts = read_job("default", job.id)
    assert (row.id, row.state, row.result, row.args, attempts) == (job.id, "succeeded", '{"n": 1}', None, [])


@quick
def test_a_jobs_attempts_are_read_oldest_first(session):
    job = JobFactory(running=True, attempts=1)
    end(session, ending("bury", job))
    ((attempt,),) = [read_job("default", job.id)[1]]
    assert (attempt.fence, attempt.outcome, attempt.traceback) == (job.fence, "failed", "Traceback: no")


@quick
def test_a_job_that_is_gone_is_none():
    assert read_job("default", 0) is None
