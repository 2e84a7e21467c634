"""The plain claim. `test_marks.py` has what is different behind a mark."""

import psycopg
import pytest

from pgqueue.protocol.claiming import claim, find_unheard
from pgqueue.states import Lane, State
from tests.factories import JobFactory, JobPayloadFactory, QueueFactory, from_now
from tests.statements.doing import OTHER_WORKER, WORKER, claim_ids, claimant, columns, fresh, lock

quick = pytest.mark.django_db
racing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])


@quick
def test_a_claim_goes_by_priority_then_due_instant_then_id(session):
    now = from_now(-100)
    low = JobFactory(priority=-1, run_at=from_now(-500))
    second, third = JobFactory(run_at=from_now(-100)), JobFactory(run_at=from_now(-90))
    twins = [JobFactory(priority=5, run_at=from_now(-50)) for _ in range(2)]
    type(low).objects.filter(priority=5).update(run_at=now)
    expected = [*(job.id for job in twins), second.id, third.id, low.id]
    assert claim_ids(session, limit=3) == expected[:3]
    assert claim_ids(session, limit=3) == expected[3:]
    assert claim_ids(session, limit=3) == []


@quick
def test_priority_goes_across_queues(session):
    low, high = JobFactory(queue="a", priority=1), JobFactory(queue="b", priority=9)
    assert claim_ids(session, limit=1) == [high.id]
    assert claim_ids(session, limit=1) == [low.id]


@quick
def test_a_claim_grants_a_lease_and_a_larger_fence(session):
    job = JobFactory()
    other = JobFactory(running=True)
    (lease,) = claim(session, claimant(lease_seconds=120.0), lane=Lane.PLAIN, limit=1)
    row = fresh(job)
    assert (row.state, row.worker_id, row.fence, row.version) == (State.RUNNING, WORKER, lease.fence, 2)
    assert (lease.id, lease.worker_id, lease.version) == (job.id, WORKER, 2)
    assert lease.fence > other.fence
    assert (row.lease_until - row.claimed_at).total_seconds() == 120
    assert (row.attempts, row.started_at) == (0, None)


@quick
@pytest.mark.case("B08")
@pytest.mark.parametrize("lease_seconds", [0.5, 120.0, 86_400.0])
def test_the_lease_is_as_long_as_the_worker_asks(session, lease_seconds):
    job = JobFactory()
    claim_ids(session, lease_seconds=lease_seconds)
    row = fresh(job)
    assert (row.lease_until - row.claimed_at).total_seconds() == lease_seconds


@quick
def test_a_lease_carries_its_arguments_as_json_texts(session):
    with_args, without = JobFactory(priority=1), JobFactory()
    JobPayloadFactory(job_id=with_args.id, args=[1, "é"], kwargs={"a": None})
    first, second = claim(session, claimant(), lane=Lane.PLAIN, limit=2)
    assert (first.args, first.kwargs) == ('[1, "é"]', '{"a": null}')
    assert (second.id, second.args, second.kwargs) == (without.id, None, None)


@quick
@pytest.mark.parametrize(
    "shape",
    [
        {"future": True},
        {"running": True},
        {"expired": True},
        {"paused": True},
        {"unknown": True},
        {"succeeded": True},
        {"dead": True},
        {"cancelled": True},
        {"tenanted": True},
        {"keyed": True},
        {"retrying": True, "alone": True},
        {"retrying": True, "future": True},
        {"task": "tests.testapp.tasks.gone"},
        {"queue": "excluded"},
    ],
    ids=lambda shape: "-".join(shape),
)
def test_what_is_not_for_the_plain_claim_is_left_alone(session, shape):
    left, taken = JobFactory(priority=9, **shape), JobFactory()
    before = columns(left)
    assert claim_ids(session, excluded=("excluded",)) == [taken.id]
    assert columns(left) == before


@quick
@pytest.mark.case("A10")
@pytest.mark.case("I01")
@pytest.mark.case("I03")
def test_a_task_this_worker_does_not_know_waits_for_one_that_does(session):
    job = JobFactory(task="os.system")
    assert claim_ids(session) == []
    assert fresh(job).state == State.PENDING
    assert claim_ids(session, tasks=("os.system",)) == [job.id]


@quick
def test_only_the_named_queues_are_served(session):
    here, there = JobFactory(queue="here"), JobFactory(queue="there")
    assert claim_ids(session, queues=("here", "empty")) == [here.id]
    assert claim_ids(session, queues=("here", "empty")) == []
    assert claim_ids(session, queues=("there",), excluded=("there",)) == []
    assert claim_ids(session, queues=()) == []
    assert claim_ids(session, excluded=("here",)) == [there.id]


@quick
@pytest.mark.parametrize(("pause", "claimed"), [("paused", 0), ("paused_for_now", 0), ("lapsed", 1)])
@pytest.mark.parametrize("named", [None, ("frozen",)])
def test_a_paused_queue_is_skipped_until_its_pause_has_passed(session, pause, claimed, named):
    QueueFactory(name="frozen", **{pause: True})
    JobFactory(queue="frozen")
    assert len(claim_ids(session, queues=named)) == claimed


@quick
def test_a_queue_with_a_row_and_no_pause_is_served(session):
    QueueFactory(name="default")
    job = JobFactory()
    assert claim_ids(session) == [job.id]


@quick
def test_a_claim_of_nothing_is_nothing(session):
    JobFactory()
    assert claim_ids(session, limit=0) == []
    assert claim_ids(session, tasks=()) == []


@quick
def test_priorities_at_both_ends_are_walked(session):
    ids = [JobFactory(priority=priority).id for priority in (100, 7, 0, -7, -100)]
    assert claim_ids(session, limit=10) == ids


@racing
@pytest.mark.case("B14")
@pytest.mark.case("B26")
def test_a_row_that_somebody_claims_is_skipped_and_none_is_given_twice(queue_connection, second_connection):
    first, second = JobFactory(priority=1), JobFactory()
    with queue_connection.transaction():
        assert claim_ids(queue_connection, limit=1) == [first.id]
        assert claim_ids(second_connection, limit=2, worker_id=OTHER_WORKER) == [second.id]
    assert fresh(first).worker_id == WORKER
    assert claim_ids(second_connection, limit=2, worker_id=OTHER_WORKER) == []


@racing
def test_no_row_is_locked_in_vain(queue_connection, second_connection):
    """What a claim did not take, another session can lock at once while the claim's transaction is open."""
    due = [JobFactory(priority=priority, queue=queue) for priority in (2, 1) for queue in "ab" for _ in range(3)]
    future = [JobFactory(priority=3, future=True), JobFactory(task="tests.testapp.tasks.gone", priority=9)]
    with queue_connection.transaction():
        taken = claim_ids(queue_connection, limit=4)
        assert len(taken) == 4
        for job in [*due, *future]:
            if job.id not in taken:
                second_connection.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE NOWAIT", [job.id])
        with pytest.raises(psycopg.errors.LockNotAvailable):
            second_connection.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE NOWAIT", [taken[0]])


@racing
@pytest.mark.case("I09")
def test_a_pause_holds_for_every_claim_begun_after_its_commit(queue_connection, second_connection):
    QueueFactory(name="default")
    first, second = JobFactory(priority=1), JobFactory()
    with second_connection.transaction():
        second_connection.execute("UPDATE pgqueue_queue SET paused_at = statement_timestamp(), version = version + 1")
        assert claim_ids(queue_connection, limit=1) == [first.id], "the pause is not committed yet"
    assert claim_ids(queue_connection, limit=1) == []
    assert fresh(first).state == State.RUNNING
    assert fresh(second).state == State.PENDING


@racing
def test_a_row_that_changed_between_the_snapshot_and_the_lock_is_judged_anew(
    queue_connection, second_connection, wait_until_blocked, in_background
):
    """The claim meets the change on its way: it is stopped at the payload's table, after its snapshot."""
    cancelled, claimed = JobFactory(priority=1), JobFactory()
    with second_connection.transaction():
        second_connection.execute("LOCK TABLE pgqueue_queue IN ACCESS EXCLUSIVE MODE")
        found = in_background(claim_ids, queue_connection, limit=1)
        wait_until_blocked(queue_connection)
        second_connection.execute(
            "UPDATE pgqueue_job SET state = 'cancelled', finished_at = statement_timestamp() WHERE id = %s",
            [cancelled.id],
        )
    assert found.result() == [claimed.id]
    assert fresh(cancelled).state == State.CANCELLED


@racing
@pytest.mark.case("A06")
@pytest.mark.case("A13")
def test_a_claim_whose_answer_was_lost_is_found_by_its_worker(queue_connection):
    unheard, heard = JobFactory(running=True), JobFactory(running=True)
    JobFactory(running=True, worker_id=OTHER_WORKER)
    JobFactory(succeeded=True)
    assert find_unheard(queue_connection, worker_id=WORKER, held_ids=[heard.id]) == [(unheard.id, unheard.fence)]
    assert len(find_unheard(queue_connection, worker_id=WORKER, held_ids=[])) == 2
    assert find_unheard(queue_connection, worker_id=303, held_ids=[]) == []


@racing
def test_a_claim_that_is_rolled_back_leaves_the_job_waiting(queue_connection, second_connection):
    job = JobFactory()
    with queue_connection.transaction(force_rollback=True):
        assert claim_ids(queue_connection) == [job.id]
    assert fresh(job).version == 1
    assert claim_ids(second_connection) == [job.id]


@racing
def test_a_claim_waits_for_no_lock_of_an_operator(queue_connection, second_connection):
    held, free = JobFactory(priority=1), JobFactory()
    with second_connection.transaction():
        lock(second_connection, held)
        assert claim_ids(queue_connection) == [free.id]
