"""What an idle worker asks: is anything due, and until when may it sleep."""

import pytest

from pgqueue.protocol import looking
from pgqueue.protocol.looking import look
from pgqueue.states import Lane
from tests.factories import JobFactory, QueueFactory, from_now
from tests.statements.doing import claimant

pytestmark = pytest.mark.django_db


def test_nothing_to_do_is_nothing_to_wait_for(session):
    JobFactory(succeeded=True)
    JobFactory(paused=True)
    horizon = look(session, claimant())
    assert (horizon.due_lanes, horizon.next_due_seconds, horizon.next_expiry_seconds) == (frozenset(), None, None)


def test_the_lanes_with_a_due_row_are_named(session):
    JobFactory()
    JobFactory(keyed=True)
    JobFactory(retrying=True, alone=True, future=True)
    horizon = look(session, claimant())
    assert horizon.due_lanes == {0, 1}
    assert 3500 < horizon.next_due_seconds <= 3600


def test_the_next_future_row_is_found_in_any_queue_at_any_priority(session):
    JobFactory(future=True, priority=5)
    JobFactory(queue="other", priority=-5, run_at=from_now(30))
    assert 25 < look(session, claimant()).next_due_seconds <= 30


def test_a_due_row_hides_no_future_one(session):
    JobFactory()
    JobFactory(run_at=from_now(30))
    horizon = look(session, claimant())
    assert horizon.due_lanes == {0}
    assert 25 < horizon.next_due_seconds <= 30


def test_the_next_expiry_is_anybodys_and_negative_when_it_is_over(session):
    JobFactory(running=True, worker_id=7, lease_until=from_now(20))
    assert 15 < look(session, claimant()).next_expiry_seconds <= 20
    JobFactory(expired=True)
    assert look(session, claimant()).next_expiry_seconds < 0


@pytest.mark.parametrize(
    ("served", "due"),
    [
        ({}, {0}),
        ({"queues": ("here",)}, {0}),
        ({"queues": ("there",)}, set()),
        ({"excluded": ("here",)}, set()),
        ({"queues": ("here",), "excluded": ("here",)}, set()),
    ],
)
def test_only_served_queues_count(session, served, due):
    JobFactory(queue="here")
    assert look(session, claimant(**served)).due_lanes == due


@pytest.mark.parametrize(("pause", "due"), [("paused", set()), ("paused_for_now", set()), ("lapsed", {0})])
def test_a_paused_queue_is_nothing_to_do(session, pause, due):
    QueueFactory(name="default", **{pause: True})
    JobFactory()
    JobFactory(run_at=from_now(30))
    horizon = look(session, claimant())
    assert horizon.due_lanes == due
    assert (horizon.next_due_seconds is None) == (not due)


def test_looking_changes_nothing_and_locks_nothing(session):
    job = JobFactory()
    look(session, claimant())
    modes = session.execute(
        "SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid() AND relation = 'pgqueue_job'::regclass"
    ).fetchall()
    assert job.id
    assert ("RowShareLock",) not in modes


def test_leases_are_looked_at_from_a_worker_on_and_round_again(session, monkeypatch):
    """One expired lease is found by some look, however many others run."""
    monkeypatch.setattr(looking, "WATCHED", 4)
    for worker_id in (1, 1, 1, 2, 2, 3, 3, 4, 5, 5):
        JobFactory(running=True, worker_id=worker_id)
    lost = JobFactory(expired=True, worker_id=4)
    from_worker, seen = 3, []
    for _ in range(6):
        horizon = look(session, claimant(), from_worker=from_worker)
        seen.append((from_worker, bool(horizon.expired_ids)))
        from_worker = horizon.next_worker
    assert {from_worker for from_worker, _ in seen} == {3, 4, 5, 1, 2}
    assert [from_worker for from_worker, has in seen if has] == [3, 4, 3]
    assert look(session, claimant(), from_worker=4).expired_ids == (lost.id,)


def test_a_look_goes_on_behind_a_worker_with_more_leases_than_it_reads(session, monkeypatch):
    monkeypatch.setattr(looking, "WATCHED", 2)
    for worker_id in (1, 1, 1, 2):
        JobFactory(running=True, worker_id=worker_id)
    assert look(session, claimant(), from_worker=1).next_worker == 2
    assert look(session, claimant(), from_worker=2).next_worker == 1


def test_a_look_that_reads_all_leases_stays_where_it_is(session):
    JobFactory(running=True, worker_id=7)
    JobFactory(expired=True, worker_id=3)
    horizon = look(session, claimant(), from_worker=5)
    assert horizon.next_worker == 5
    assert horizon.next_expiry_seconds < 0


def test_how_long_an_isolated_job_has_been_due_is_told(session):
    JobFactory(run_at=from_now(-900), alone=True)
    assert look(session, claimant()).isolated_seconds is None
    JobFactory(isolated=True, future=True)
    assert look(session, claimant()).isolated_seconds is None
    JobFactory(isolated=True, run_at=from_now(-600))
    JobFactory(isolated=True, run_at=from_now(-5))
    horizon = look(session, claimant())
    assert horizon.due_lanes == {Lane.ALONE, Lane.ISOLATED}
    assert 600 <= horizon.isolated_seconds < 660
