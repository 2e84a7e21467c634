"""The laned claim: propose and lock the keys, then claim under a new snapshot."""

import pytest

from pgqueue.protocol.claiming import claim
from pgqueue.states import Lane, State
from pgqueue.takeover import take_over_expired
from tests.factories import JobFactory, JobPayloadFactory, QueueFactory, from_now
from tests.statements.doing import OTHER_WORKER, claim_ids, claim_picked, claimant, columns, fresh, lock, pick

quick = pytest.mark.django_db
racing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])


def laned(connection, **changes):
    return claim_ids(connection, lane=Lane.LANED, **changes)


@quick
def test_each_lane_is_claimed_apart(session):
    plain, tenant = JobFactory(), JobFactory(tenanted=True)
    key, alone = JobFactory(keyed=True), JobFactory(alone=True)
    assert claim_ids(session, lane=Lane.PLAIN) == [plain.id]
    assert sorted(claim_ids(session, lane=Lane.LANED)) == [tenant.id, key.id]
    assert claim_ids(session, lane=Lane.ALONE) == [alone.id]


@quick
@pytest.mark.case("E02")
@pytest.mark.case("E03")
def test_a_batch_takes_one_row_of_a_key(session):
    jobs = [JobFactory(keyed=True) for _ in range(12)]
    assert laned(session) == [jobs[0].id]
    assert laned(session) == []


@quick
@pytest.mark.case("E05")
def test_the_row_of_a_key_that_goes_first_is_its_highest_and_oldest(session):
    JobFactory(keyed=True, run_at=from_now(-5))
    oldest = JobFactory(keyed=True, run_at=from_now(-50))
    assert laned(session) == [oldest.id]
    other = JobFactory(keyed=True, queue="other", priority=0, run_at=from_now(-50))
    high = JobFactory(keyed=True, queue="other", priority=3, run_at=from_now(-5))
    assert laned(session) == [high.id]
    assert fresh(other).state == State.PENDING


@quick
def test_keys_of_two_queues_are_two_keys(session):
    first, second = JobFactory(keyed=True), JobFactory(keyed=True, queue="other")
    assert sorted(laned(session)) == [first.id, second.id]


@quick
@pytest.mark.case("D11")
def test_tenants_without_a_key_do_not_exclude_each_other(session):
    ids = [JobFactory(tenanted=True).id for _ in range(3)]
    assert laned(session) == ids


@quick
@pytest.mark.case("D02")
@pytest.mark.case("E12")
def test_a_key_is_free_again_after_the_takeover_and_no_earlier(session):
    JobFactory(keyed=True, expired=True)
    waiting = JobFactory(keyed=True)
    assert laned(session) == []
    type(waiting).objects.filter(state=State.RUNNING).delete()
    assert laned(session) == [waiting.id]


@quick
@pytest.mark.parametrize(
    "shape",
    [
        {"future": True},
        {"paused": True},
        {"dead": True},
        {"running": True},
        {"task": "tests.testapp.tasks.gone"},
        {"queue": "excluded"},
        {"queue": "frozen"},
    ],
    ids=lambda shape: "-".join(f"{name}" for name in shape),
)
def test_what_is_not_to_be_claimed_is_left_alone(session, shape):
    QueueFactory(name="frozen", paused=True)
    left, taken = JobFactory(tenanted=True, priority=9, **shape), JobFactory(tenanted=True)
    before = columns(left)
    assert laned(session, excluded=("excluded",)) == [taken.id]
    assert columns(left) == before


@quick
def test_a_laned_lease_carries_its_lane_and_its_arguments(session):
    job = JobFactory(keyed=True, tenant="acme")
    JobPayloadFactory(job_id=job.id)
    (lease,) = claim(session, claimant(), lane=Lane.LANED, limit=1)
    assert (lease.lane, lease.tenant, lease.shard_key, lease.args) == (1, "acme", "customer:7", "[1, 2]")
    assert fresh(job).version == 2


@quick
def test_the_pick_proposes_and_writes_nothing(session):
    job = JobFactory(keyed=True)
    before = columns(job)
    assert pick(session) == [job.id]
    assert columns(job) == before


@quick
@pytest.mark.case("B22")
def test_a_recovered_job_keeps_its_place_before_the_younger_ones_of_its_key(session):
    """J1 is lost and due again; J2 of the same key must not start before it, in whatever lane each waits."""
    lost, younger = JobFactory(keyed=True), JobFactory(keyed=True)
    assert laned(session) == [lost.id]
    session.execute("UPDATE pgqueue_job SET lease_until = statement_timestamp() WHERE id = %s", [lost.id])
    assert [taken.job.id for taken in take_over_expired(session)] == [lost.id]
    assert laned(session) == [], f"job {younger.id} overtook job {lost.id}"


@racing
@pytest.mark.case("D01")
def test_a_key_that_another_session_is_claiming_is_skipped(queue_connection, second_connection):
    first = JobFactory(keyed=True)
    JobFactory(keyed=True)
    with queue_connection.transaction():
        assert laned(queue_connection) == [first.id]
        JobFactory(keyed=True, priority=9)
        assert laned(second_connection, worker_id=OTHER_WORKER) == []
    assert laned(second_connection, worker_id=OTHER_WORKER) == []


@racing
def test_a_lock_on_one_key_keeps_nobody_from_the_others(queue_connection, second_connection):
    first = JobFactory(keyed=True)
    other = JobFactory(keyed=True, shard_key="customer:8")
    with queue_connection.transaction():
        assert laned(queue_connection, limit=1) == [first.id]
        assert laned(second_connection, worker_id=OTHER_WORKER) == [other.id]


@racing
def test_the_second_half_sees_what_was_committed_after_the_first(queue_connection, second_connection):
    """A job of the key started between the two statements, the pick's snapshot does not see it."""
    job, twin = JobFactory(keyed=True), JobFactory(keyed=True)
    with queue_connection.transaction():
        assert pick(queue_connection) == [job.id]
        second_connection.execute(
            "UPDATE pgqueue_job SET state = 'running', worker_id = 202, lease_until = now() + '1 min' WHERE id = %s",
            [twin.id],
        )
        assert claim_picked(queue_connection, [job.id]) == []


@racing
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE pgqueue_job SET state = 'cancelled', finished_at = now()",
        "UPDATE pgqueue_job SET state = 'paused', held_from = 'pending'",
        "UPDATE pgqueue_job SET run_at = now() + '1 hour'",
        "DELETE FROM pgqueue_job",
        "INSERT INTO pgqueue_queue (name, version, created_at, paused_at) VALUES ('default', 1, now(), now())",
    ],
)
def test_the_second_half_judges_the_row_anew(queue_connection, second_connection, change):
    job = JobFactory(keyed=True)
    with queue_connection.transaction():
        assert pick(queue_connection) == [job.id]
        second_connection.execute(change)
        assert claim_picked(queue_connection, [job.id]) == []


@racing
def test_locked_heads_keep_none_of_the_rows_behind_them_waiting(queue_connection, second_connection):
    """A whole batch of them in front: the claim looks further within the same transaction."""
    locked = [JobFactory(tenanted=True, priority=2) for _ in range(3)]
    keyed = JobFactory(keyed=True, priority=1)
    free = [JobFactory(tenanted=True).id for _ in range(2)]
    with second_connection.transaction():
        for job in locked:
            lock(second_connection, job)
        assert pick(second_connection, limit=9)[-3:] == [keyed.id, *free]
        assert laned(queue_connection, limit=2) == free


@racing
def test_keys_are_let_go_with_the_transaction(queue_connection, second_connection):
    job = JobFactory(keyed=True)
    with queue_connection.transaction(force_rollback=True):
        assert pick(queue_connection) == [job.id]
        assert pick(second_connection) == []
    assert pick(second_connection) == [job.id]
    locks = second_connection.execute(
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
        " WHERE locktype = 'advisory' AND datname = current_database()"
    )
    assert locks.fetchone() == (0,)
