"""The endings: complete, retry, bury, release; each row fenced on its own."""

import pytest

from pgqueue.models import Attempt, JobResult
from pgqueue.protocol.settling import EndingKind
from pgqueue.states import Lane, State
from pgqueue.takeover import take_over_expired
from tests.factories import JobFactory
from tests.statements.doing import (
    OTHER_WORKER,
    WORKER,
    claim_ids,
    columns,
    end,
    ending,
    fresh,
    lock,
    states,
)

quick = pytest.mark.django_db
racing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
every_kind = pytest.mark.parametrize("kind", list(EndingKind))


def attempts_of(job):
    return list(
        Attempt.objects.filter(job_id=job.id)
        .order_by("id")
        .values_list("fence", "worker_id", "number", "outcome", "failure_class")
    )


def results_of(job):
    return list(JobResult.objects.filter(job_id=job.id).values_list("value", flat=True))


def expire(connection, job):
    connection.execute("UPDATE pgqueue_job SET lease_until = statement_timestamp() WHERE id = %s", [job.id])


@quick
def test_a_first_attempt_that_succeeds_is_one_row(session):
    job = JobFactory(running=True)
    settled = end(session, ending("complete", job, result='{"n": 1}', run_seconds=2.5))
    row = fresh(job)
    assert states(settled) == {job.id: State.SUCCEEDED}
    assert (row.state, row.attempts, row.version, row.fence, row.settled_by) == ("succeeded", 1, 3, job.fence, WORKER)
    assert (row.finished_at - row.started_at).total_seconds() == 2.5
    assert settled.written[job.id].at == row.finished_at
    assert results_of(job) == [{"n": 1}]
    assert attempts_of(job) == []


@quick
def test_a_result_of_none_has_no_row(session):
    job = JobFactory(running=True)
    end(session, ending("complete", job))
    assert results_of(job) == []


@quick
@pytest.mark.parametrize("history", [{"attempts": 2}, {"alone": True}])
def test_a_later_attempt_that_succeeds_has_its_row(session, history):
    job = JobFactory(running=True, **history)
    end(session, ending("complete", job))
    assert attempts_of(job) == [(job.fence, WORKER, job.attempts + 1, "succeeded", None)]


@quick
def test_a_retry_is_due_after_its_delay_by_the_databases_clock(session):
    job = JobFactory(running=True, attempts=2)
    settled = end(session, ending("retry", job, delay_seconds=30.0, run_seconds=1.0))
    row = fresh(job)
    assert states(settled) == {job.id: State.RETRYING}
    assert (row.state, row.attempts, row.version, row.finished_at) == ("retrying", 3, 3, None)
    assert (row.run_at - settled.written[job.id].at).total_seconds() == 30
    assert (row.last_error_class, row.last_error) == ("builtins.RuntimeError", "no")
    assert attempts_of(job) == [(job.fence, WORKER, 3, "failed", "system")]


@quick
def test_the_last_attempt_that_fails_is_dead(session):
    job = JobFactory(running=True, attempts=7, max_attempts=8)
    assert states(end(session, ending("retry", job, delay_seconds=30.0))) == {job.id: State.DEAD}
    row = fresh(job)
    assert (row.state, row.attempts, row.run_at) == ("dead", 8, job.run_at)
    assert attempts_of(job) == [(job.fence, WORKER, 8, "failed", "system")]


@quick
@pytest.mark.parametrize("attempts", [0, 7])
def test_a_failure_after_a_stop_request_is_cancelled(session, attempts):
    job = JobFactory(stop_requested=True, attempts=attempts)
    assert states(end(session, ending("retry", job, delay_seconds=30.0))) == {job.id: State.CANCELLED}
    assert fresh(job).attempts == attempts + 1
    assert len(attempts_of(job)) == 1


@quick
def test_a_buried_job_is_dead_whatever_attempts_are_left(session):
    job = JobFactory(running=True)
    assert states(end(session, ending("bury", job))) == {job.id: State.DEAD}
    row = fresh(job)
    assert (row.state, row.attempts, row.last_error) == ("dead", 1, "no")
    assert attempts_of(job) == [(job.fence, WORKER, 1, "failed", "system")]


@quick
def test_a_buried_job_that_was_asked_to_stop_is_cancelled(session):
    job = JobFactory(stop_requested=True)
    assert states(end(session, ending("bury", job))) == {job.id: State.CANCELLED}
    assert fresh(job).finished_at is not None
    assert len(attempts_of(job)) == 1


@quick
def test_a_released_job_is_as_if_never_claimed(session):
    job = JobFactory(running=True)
    assert states(end(session, ending("release", job))) == {job.id: State.PENDING}
    row = fresh(job)
    assert (row.state, row.attempts, row.claimed_at, row.started_at, row.run_at) == (
        "pending",
        0,
        None,
        None,
        job.run_at,
    )
    assert attempts_of(job) == []
    assert claim_ids(session) == [job.id]
    assert fresh(job).fence > job.fence


@quick
@pytest.mark.case("A16")
def test_a_release_after_a_stop_request_is_cancelled(session):
    job = JobFactory(stop_requested=True)
    assert states(end(session, ending("release", job))) == {job.id: State.CANCELLED}
    assert fresh(job).finished_at is not None
    assert claim_ids(session) == []


@quick
def test_a_job_that_failed_before_is_released_to_pending(session):
    """Pending means due: what it counted stays."""
    job = JobFactory(running=True, attempts=3)
    end(session, ending("release", job))
    assert (fresh(job).state, fresh(job).attempts) == ("pending", 3)


@quick
@pytest.mark.case("B04")
@every_kind
@pytest.mark.parametrize(
    ("shape", "fence_off_by", "worker_id"),
    [
        ({"running": True}, 1, WORKER),
        ({"running": True}, -1, WORKER),
        ({"running": True}, 0, OTHER_WORKER),
        ({}, 0, WORKER),
        ({"retrying": True, "settled_by": OTHER_WORKER}, 0, WORKER),
        ({"paused": True}, 0, WORKER),
        ({"unknown": True}, 0, WORKER),
        ({"succeeded": True, "settled_by": OTHER_WORKER}, 0, WORKER),
        ({"dead": True, "settled_by": OTHER_WORKER}, 0, WORKER),
        ({"cancelled": True}, 0, WORKER),
    ],
)
def test_an_ending_that_no_longer_owns_the_job_writes_nothing(session, kind, shape, fence_off_by, worker_id):
    job = JobFactory(**shape)
    before = columns(job)
    stale = ending(kind, job, fence=job.fence + fence_off_by)
    settled = end(session, stale, worker_id=worker_id)
    assert (settled.written, settled.busy, settled.lost) == ({}, [], [stale])
    assert columns(job) == before
    assert attempts_of(job) == results_of(job) == []


@quick
@pytest.mark.case("B13")
@every_kind
def test_a_late_ending_is_accepted_while_nobody_took_over(session, kind):
    job = JobFactory(expired=True)
    assert list(end(session, ending(kind, job)).written) == [job.id]


@quick
@pytest.mark.case("B16")
@every_kind
def test_a_late_ending_is_refused_after_the_takeover(session, kind):
    job = JobFactory(expired=True)
    assert len(take_over_expired(session)) == 1
    before = columns(job)
    late = ending(kind, job, result="1")
    assert end(session, late).lost == [late]
    assert columns(job) == before
    assert results_of(job) == []
    assert attempts_of(job) == [(job.fence, WORKER, 1, "lost", "lease_lost")]


@quick
@pytest.mark.case("B05")
@every_kind
def test_a_late_ending_is_refused_when_the_same_worker_has_claimed_the_job_again(session, kind):
    job = JobFactory(expired=True)
    take_over_expired(session)
    assert claim_ids(session, lane=Lane.ALONE) == [job.id]
    before = columns(job)
    late = ending(kind, job)
    assert end(session, late).lost == [late]
    assert columns(job) == before


@quick
@pytest.mark.case("B19")
@every_kind
def test_an_ending_sent_again_is_told_as_written(session, kind):
    job = JobFactory(running=True)
    again = ending(kind, job, result="1")
    first = end(session, again)
    before = columns(job)
    second = end(session, again)
    assert states(second) == states(first)
    assert (second.busy, second.lost) == ([], [])
    assert columns(job) == before
    assert len(attempts_of(job)) == (kind in ("retry", "bury"))


@quick
@pytest.mark.parametrize("kind", ["retry", "bury"])
def test_an_ending_sent_again_is_told_as_written_though_the_job_has_moved_on(session, kind):
    """A failed attempt keeps its own row, so the answer is found after another claim."""
    job = JobFactory(running=True)
    again = ending(kind, job)
    end(session, again)
    session.execute(
        "UPDATE pgqueue_job SET state = 'pending', finished_at = NULL, run_at = now() WHERE id = %s", [job.id]
    )
    assert claim_ids(session, worker_id=OTHER_WORKER) == [job.id]
    before = columns(job)
    settled = end(session, again)
    assert states(settled) == {job.id: State.RUNNING}
    assert settled.lost == []
    assert columns(job) == before


@quick
def test_another_workers_ending_is_nobodys_own(session):
    job = JobFactory(running=True)
    end(session, ending("complete", job))
    stale = ending("complete", job)
    assert end(session, stale, worker_id=OTHER_WORKER).lost == [stale]


@quick
def test_one_batch_holds_every_kind(session):
    jobs = {kind: JobFactory(running=True) for kind in EndingKind}
    settled = end(session, *(ending(kind, job) for kind, job in jobs.items()))
    assert states(settled) == {
        jobs[EndingKind.COMPLETE].id: State.SUCCEEDED,
        jobs[EndingKind.RETRY].id: State.RETRYING,
        jobs[EndingKind.BURY].id: State.DEAD,
        jobs[EndingKind.RELEASE].id: State.PENDING,
    }


@quick
def test_each_row_of_a_batch_is_fenced_on_its_own(session):
    good, stale, foreign = (
        JobFactory(running=True),
        JobFactory(running=True),
        JobFactory(running=True, worker_id=OTHER_WORKER),
    )
    gone = ending("complete", stale, fence=stale.fence - 1)
    theirs = ending("complete", foreign)
    settled = end(session, theirs, gone, ending("complete", good))
    assert states(settled) == {good.id: State.SUCCEEDED}
    assert settled.lost == [theirs, gone]


@quick
@pytest.mark.case("H02")
def test_one_result_that_cannot_be_stored_blocks_none_of_500(session):
    """NUL is valid JSON and no jsonb: that job is buried with the reason, the others succeed."""
    template = JobFactory(running=True)
    session.execute(
        """
        INSERT INTO pgqueue_job (
            fence, version, created_at, run_at, worker_id, lease_until, claimed_at, priority, lane, attempts,
            max_attempts, lease_losses, unknown_effects, state, queue, task, recovery, stage
        )
        SELECT
            nextval('pgqueue_fence'), version, created_at, run_at, worker_id, lease_until, claimed_at, priority, lane,
            attempts, max_attempts, lease_losses, unknown_effects, state, queue, task, recovery, stage
        FROM pgqueue_job, generate_series(1, 499) WHERE id = %s
        """,
        [template.id],
    )
    jobs = list(type(template).objects.order_by("id"))
    bad = jobs[250]
    endings = [ending("complete", job, result='"\\u0000"' if job == bad else "1") for job in jobs]
    settled = end(session, *endings)
    assert len(settled.written) == 500
    assert {id for id, state in states(settled).items() if state != State.SUCCEEDED} == {bad.id}
    row = fresh(bad)
    assert row.state == State.DEAD
    assert "UntranslatableCharacter" in row.last_error_class
    assert [failure_class for *_, failure_class in attempts_of(bad)] == ["result"]
    assert JobResult.objects.count() == 499


@quick
def test_an_ending_that_a_check_refuses_leaves_the_job_to_the_takeover(session):
    """More attempts than it may have: a row that no release of ours makes."""
    job = JobFactory(running=True, attempts=8)
    other = JobFactory(running=True)
    before = columns(job)
    settled = end(session, ending("complete", job), ending("complete", other))
    assert states(settled) == {other.id: State.SUCCEEDED}
    assert [one.id for one, _ in settled.refused] == [job.id]
    assert columns(job) == before
    expire(session, job)
    take_over_expired(session)
    assert fresh(job).state == State.RETRYING


@racing
def test_a_locked_row_is_asked_again_and_blocks_nobody(queue_connection, second_connection):
    """An operator looks at one of them: the others are settled without waiting."""
    held, free = JobFactory(running=True), JobFactory(running=True)
    with second_connection.transaction():
        lock(second_connection, held)
        busy = ending("complete", held)
        settled = end(queue_connection, busy, ending("complete", free))
        assert states(settled) == {free.id: State.SUCCEEDED}
        assert (settled.busy, settled.lost) == ([busy], [])
    assert states(end(queue_connection, busy)) == {held.id: State.SUCCEEDED}


@racing
@every_kind
def test_an_ending_that_meets_a_takeover_under_way_is_refused_once_that_commits(
    queue_connection, second_connection, kind
):
    job = JobFactory(expired=True)
    late = ending(kind, job)
    with second_connection.transaction():
        assert len(take_over_expired(second_connection)) == 1
        assert end(queue_connection, late).busy == [late], "nothing is decided yet"
    assert end(queue_connection, late).lost == [late]


@racing
def test_a_stop_request_that_was_committed_first_decides(queue_connection, second_connection):
    job = JobFactory(running=True)
    failed = ending("retry", job, delay_seconds=5.0)
    with second_connection.transaction():
        second_connection.execute(
            "UPDATE pgqueue_job SET stop_requested_at = now(), version = version + 1 WHERE id = %s", [job.id]
        )
        assert end(queue_connection, failed).busy == [failed]
    assert states(end(queue_connection, failed)) == {job.id: State.CANCELLED}


@racing
@every_kind
def test_the_statement_itself_reaches_postgresql_with_the_queues_own_binding(queue_connection, kind):
    job = JobFactory(running=True)
    settled = end(queue_connection, ending(kind, job, result="null" if kind == "complete" else None))
    assert list(settled.written) == [job.id]
