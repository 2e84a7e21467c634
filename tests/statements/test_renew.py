"""The heartbeat's statement."""

import pytest

from pgqueue.failures import FailureClass, describe
from pgqueue.protocol.leasing import renew
from pgqueue.protocol.settling import Ending, EndingKind, Failure, settle
from tests.factories import JobFactory
from tests.statements.doing import OTHER_WORKER, WORKER, columns, lock, renew_one

quick = pytest.mark.django_db
racing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])


@quick
def test_a_held_lease_is_prolonged_and_nothing_else_changes(session):
    job = JobFactory(running=True)
    before = columns(job)
    renewal = renew_one(session, job, lease_seconds=600.0)
    assert (renewal.renewed, renewal.stop_requested, renewal.lost) == ({job.id}, set(), set())
    after = columns(job)
    assert (after["lease_until"] - before["lease_until"]).total_seconds() > 500
    assert {name for name in before if before[name] != after[name]} == {"lease_until"}


@quick
def test_a_stop_request_is_told_and_the_lease_goes_on(session):
    job = JobFactory(stop_requested=True)
    renewal = renew_one(session, job)
    assert (renewal.renewed, renewal.stop_requested, renewal.lost) == ({job.id}, {job.id}, set())


@quick
@pytest.mark.case("B17")
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"retrying": True, "settled_by": OTHER_WORKER},
        {"paused": True},
        {"unknown": True},
        {"succeeded": True, "settled_by": OTHER_WORKER},
        {"dead": True, "settled_by": OTHER_WORKER},
        {"cancelled": True},
        {"expired": True},
        {"running": True, "worker_id": OTHER_WORKER},
    ],
    ids=lambda shape: "-".join(shape) or "pending",
)
def test_what_is_not_held_is_lost_and_nothing_is_written(session, shape):
    job = JobFactory(**shape)
    before = columns(job)
    renewal = renew_one(session, job)
    assert (renewal.renewed, renewal.lost) == (set(), {job.id})
    assert columns(job) == before


@quick
@pytest.mark.case("A02")
@pytest.mark.parametrize("off_by", [-1, 1])
def test_another_fence_of_the_same_worker_is_lost(session, off_by):
    job = JobFactory(running=True)
    before = columns(job)
    assert renew_one(session, job, fence=job.fence + off_by).lost == {job.id}
    assert columns(job) == before


@quick
def test_a_deleted_job_is_lost(session):
    job = JobFactory(running=True)
    id = job.id
    job.delete()
    job.pk = id
    assert renew_one(session, job).lost == {id}


@quick
@pytest.mark.case("B25")
def test_one_statement_renews_a_whole_worker_and_loses_only_what_is_lost(session):
    held = [JobFactory(running=True) for _ in range(20)]
    gone = JobFactory(expired=True)
    mapping = {job.id: job.fence for job in [*held, gone]}
    renewal = renew(session, worker_id=WORKER, held=mapping, lease_seconds=60.0)
    assert renewal.renewed == {job.id for job in held}
    assert renewal.lost == {gone.id}


@racing
def test_a_row_that_is_being_settled_is_neither_renewed_nor_lost(queue_connection, second_connection):
    job = JobFactory(running=True)
    with second_connection.transaction():
        lock(second_connection, job)
        renewal = renew_one(queue_connection, job)
        assert (renewal.renewed, renewal.lost) == (set(), set())
    assert renew_one(queue_connection, job).renewed == {job.id}


@quick
@pytest.mark.parametrize("kind", [EndingKind.COMPLETE, EndingKind.RETRY, EndingKind.RELEASE])
def test_a_row_that_its_owner_has_just_settled_is_not_lost(session, kind):
    """The heartbeat asked before the dispatcher had heard that the ending is written."""
    failure = Failure(FailureClass.SYSTEM, describe(RuntimeError("no"))) if kind is EndingKind.RETRY else None
    job = JobFactory(running=True)
    assert settle(session, worker_id=WORKER, endings=[Ending(kind, job.id, job.fence, failure=failure)]).written
    renewal = renew_one(session, job)
    assert (renewal.renewed, renewal.lost) == (set(), set())


@racing
def test_an_expired_row_that_is_locked_is_lost_all_the_same(queue_connection, second_connection):
    """It is being taken over: nobody may go on as if the lease were held."""
    job = JobFactory(expired=True)
    with second_connection.transaction():
        lock(second_connection, job)
        assert renew_one(queue_connection, job).lost == {job.id}


@racing
def test_a_heartbeat_is_a_hot_update(queue_connection):
    """The row moves within its page and no index is written."""
    job = JobFactory(running=True)
    before = hot_updates(queue_connection)
    for _ in range(3):
        assert renew_one(queue_connection, job).renewed
    assert hot_updates(queue_connection) - before == 3


def hot_updates(connection):
    connection.execute("SELECT pg_stat_force_next_flush()")
    query = "SELECT pg_stat_get_tuples_hot_updated('pgqueue_job'::regclass)"
    return connection.execute(query).fetchone()[0]
