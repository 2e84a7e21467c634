"""Endings and takeovers against each other, against operators, and against what the database refuses."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection as django_connection

from pgqueue.failures import Description, FailureClass
from pgqueue.models import Attempt, Job, JobResult
from pgqueue.operations import Action, act
from pgqueue.protocol.claiming import claim
from pgqueue.protocol.leasing import renew
from pgqueue.protocol.settling import Ending, EndingKind, Failure, Settled, settle
from pgqueue.states import AttemptOutcome, Lane, Outcome, Recovery, State
from pgqueue.takeover import take_over_expired
from tests.factories import JobFactory

from .conftest import OPERATOR, PATIENCE_SECONDS, Connection, Stop
from .rows import WORKER, add_jobs, claimant, expire, snapshot

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

OpenConnection = Callable[[], Connection]
ActInBackground = Callable[..., Future[Action]]

FAILURE = Failure(FailureClass.SYSTEM, Description("builtins.RuntimeError", "no", "Traceback"))
UNSTORABLE = '{"half": '


def ending(job: Job, kind: EndingKind = EndingKind.COMPLETE, **given: Any) -> Ending:
    failure = FAILURE if kind in (EndingKind.RETRY, EndingKind.BURY) else None
    return Ending(kind, job.id, job.fence, run_seconds=0.5, failure=failure, **given)


def settle_all(connection: Connection, *endings: Ending) -> Settled:
    return settle(connection, worker_id=WORKER, endings=endings)


def act_now(verb: str, job: Job) -> Action:
    return act(verb, job.id, version_seen=job.version, actor=OPERATOR, reason="a race")


# -- late endings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EndingKind)
def test_a_late_ending_after_a_takeover_writes_nothing_and_is_lost(
    queue_connection: Connection, kind: EndingKind
) -> None:
    job = JobFactory(expired=True)
    late = ending(job, kind, **({"result": "1"} if kind is EndingKind.COMPLETE else {}))
    [taken] = take_over_expired(queue_connection)
    assert taken.job.id == job.id
    before = snapshot()
    settled = settle_all(queue_connection, late)
    assert (settled.written, settled.busy, settled.lost) == ({}, [], [late])
    assert snapshot() == before
    assert not JobResult.objects.exists()
    assert [attempt.outcome for attempt in Attempt.objects.all()] == [AttemptOutcome.LOST]
    row = Job.objects.get()
    assert (row.state, row.lease_losses, row.attempts, row.lane) == (State.RETRYING, 1, 0, Lane.ALONE)
    assert row.fence > job.fence


def test_a_late_ending_before_any_takeover_is_written(queue_connection: Connection) -> None:
    job = JobFactory(expired=True)
    settled = settle_all(queue_connection, ending(job))
    assert settled.written[job.id].state == State.SUCCEEDED
    assert take_over_expired(queue_connection) == []


def test_a_late_ending_does_not_touch_the_next_owner(
    queue_connection: Connection, second_connection: Connection
) -> None:
    job = JobFactory(expired=True)
    take_over_expired(queue_connection)
    [lease] = claim(second_connection, claimant(WORKER + 1), lane=Lane.ALONE, limit=1)
    assert lease.fence > job.fence
    before = snapshot()
    assert settle_all(queue_connection, ending(job)).lost == [ending(job)]
    assert snapshot() == before


def test_an_ending_that_meets_an_open_takeover_is_busy_and_then_lost(
    queue_connection: Connection, second_connection: Connection
) -> None:
    job = JobFactory(expired=True)
    with second_connection.transaction():
        assert len(take_over_expired(second_connection)) == 1
        assert settle_all(queue_connection, ending(job)).busy == [ending(job)]
    assert settle_all(queue_connection, ending(job)).lost == [ending(job)]


def test_a_takeover_that_meets_an_open_ending_leaves_the_job_alone(
    queue_connection: Connection, second_connection: Connection
) -> None:
    job = JobFactory(expired=True)
    with queue_connection.transaction():
        assert set(settle_all(queue_connection, ending(job)).written) == {job.id}
        assert take_over_expired(second_connection) == []
    assert take_over_expired(second_connection) == []
    assert Job.objects.get().state == State.SUCCEEDED


def test_a_renewal_that_meets_an_open_ending_neither_renews_nor_loses(
    queue_connection: Connection, second_connection: Connection
) -> None:
    job = JobFactory(running=True)
    with queue_connection.transaction():
        settle_all(queue_connection, ending(job))
        renewal = renew(second_connection, worker_id=WORKER, held={job.id: job.fence}, lease_seconds=60)
        assert (renewal.renewed, renewal.lost) == (set(), set())
    # Committed, it is no loss either: its owner wrote it.
    renewal = renew(second_connection, worker_id=WORKER, held={job.id: job.fence}, lease_seconds=60)
    assert (renewal.renewed, renewal.lost) == (set(), set())


# -- endings and operators ---------------------------------------------------------------------------------


def test_an_ending_after_a_broken_lease_is_lost(queue_connection: Connection) -> None:
    job = JobFactory(running=True, recovery=Recovery.IDEMPOTENT)
    action = act_now("break_lease", job)
    assert (action.outcome, action.state_after) == (Outcome.APPLIED, State.RETRYING)
    before = snapshot()
    assert settle_all(queue_connection, ending(job)).lost == [ending(job)]
    assert snapshot() == before
    assert [attempt.outcome for attempt in Attempt.objects.all()] == [AttemptOutcome.LOST]


def test_a_lease_broken_after_the_ending_changes_nothing(queue_connection: Connection) -> None:
    job = JobFactory(running=True, recovery=Recovery.IDEMPOTENT)
    settle_all(queue_connection, ending(job))
    before = snapshot()
    action = act_now("break_lease", job)
    assert (action.outcome, action.state_found) == (Outcome.CHANGED, State.SUCCEEDED)
    assert snapshot() == before


def test_a_lease_broken_while_the_ending_is_open_waits_and_changes_nothing(
    queue_connection: Connection,
    act_in_background: ActInBackground,
    wait_until_sessions_wait: Callable[..., None],
    patient_locks: None,
) -> None:
    job = JobFactory(running=True, recovery=Recovery.IDEMPOTENT)
    with queue_connection.transaction():
        settle_all(queue_connection, ending(job))
        broken = act_in_background("break_lease", job.id, version_seen=job.version)
        wait_until_sessions_wait(1)
    assert broken.result().outcome == Outcome.CHANGED
    assert broken.result().state_found == State.SUCCEEDED
    assert Job.objects.get().state == State.SUCCEEDED


def test_an_ending_while_the_lease_is_being_broken_is_busy_and_then_lost(
    queue_connection: Connection, act_in_background: ActInBackground, stopped_before_commit: Stop
) -> None:
    job = JobFactory(running=True, recovery=Recovery.IDEMPOTENT)
    broken = act_in_background("break_lease", job.id, version_seen=job.version)
    stopped_before_commit.wait_until_reached()
    assert settle_all(queue_connection, ending(job)).busy == [ending(job)]
    stopped_before_commit.release()
    assert broken.result().outcome == Outcome.APPLIED
    assert settle_all(queue_connection, ending(job)).lost == [ending(job)]


def test_an_ending_while_a_verb_holds_the_row_is_busy_and_written_when_sent_again(
    queue_connection: Connection, act_in_background: ActInBackground, stopped_before_commit: Stop
) -> None:
    job = JobFactory(running=True)
    asked = act_in_background("ask_to_stop", job.id, version_seen=job.version)
    stopped_before_commit.wait_until_reached()
    settled = settle_all(queue_connection, ending(job))
    assert (settled.written, settled.busy, settled.lost) == ({}, [ending(job)], [])
    stopped_before_commit.release()
    assert asked.result().outcome == Outcome.APPLIED
    assert settle_all(queue_connection, *settled.busy).written[job.id].state == State.SUCCEEDED
    assert Job.objects.get().version == job.version + 2


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        (EndingKind.COMPLETE, State.SUCCEEDED),
        (EndingKind.RETRY, State.CANCELLED),
        (EndingKind.RELEASE, State.CANCELLED),
        (EndingKind.BURY, State.CANCELLED),
    ],
)
def test_a_stop_request_is_honoured_by_every_ending_but_success(
    queue_connection: Connection, kind: EndingKind, state: State
) -> None:
    job = JobFactory(running=True)
    assert act_now("ask_to_stop", job).outcome == Outcome.APPLIED
    assert settle_all(queue_connection, ending(job, kind)).written[job.id].state == state


# -- the answer to a COMMIT was lost -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", EndingKind)
def test_an_ending_written_before_is_found_as_our_own(
    queue_connection: Connection, second_connection: Connection, kind: EndingKind
) -> None:
    job = JobFactory(running=True)
    first = settle_all(second_connection, ending(job, kind))
    before = snapshot()
    again = settle_all(queue_connection, ending(job, kind))
    assert (set(again.written), again.busy, again.lost) == ({job.id}, [], [])
    assert again.written[job.id].state == first.written[job.id].state
    assert snapshot() == before


def test_an_ending_is_found_as_our_own_among_new_and_lost_ones(
    queue_connection: Connection, second_connection: Connection
) -> None:
    [written, lost, new] = add_jobs(3, running=True, recovery=Recovery.IDEMPOTENT)
    settle_all(second_connection, ending(written, result="1"))
    act_now("break_lease", lost)
    settled = settle_all(queue_connection, *(ending(job, result="1") for job in (written, lost, new)))
    assert set(settled.written) == {written.id, new.id}
    assert [one.id for one in settled.lost] == [lost.id]
    assert JobResult.objects.count() == 2


def test_a_retry_is_found_as_our_own_although_the_job_was_claimed_again(
    queue_connection: Connection, second_connection: Connection
) -> None:
    job = JobFactory(running=True)
    settle_all(second_connection, ending(job, EndingKind.RETRY))
    [lease] = claim(second_connection, claimant(WORKER + 1), lane=Lane.PLAIN, limit=1)
    assert lease.id == job.id
    settled = settle_all(queue_connection, ending(job, EndingKind.RETRY))
    assert (set(settled.written), settled.lost) == ({job.id}, [])
    assert Attempt.objects.count() == 1


def test_a_completion_is_not_taken_for_our_own_when_another_worker_wrote_it(queue_connection: Connection) -> None:
    job = JobFactory(running=True)
    settle_all(queue_connection, ending(job))
    assert settle(queue_connection, worker_id=WORKER + 1, endings=[ending(job)]).lost == [ending(job)]


# -- endings that the database refuses ---------------------------------------------------------------------


def test_a_refused_ending_is_buried_and_never_blocks_the_others(queue_connection: Connection) -> None:
    jobs = add_jobs(500, running=True)
    refused = jobs[250]
    endings = [ending(job, result=UNSTORABLE if job is refused else "1") for job in jobs]
    settled = settle_all(queue_connection, *endings)
    assert set(settled.written) == {job.id for job in jobs}
    assert settled.written[refused.id].state == State.DEAD
    assert Job.objects.filter(state=State.SUCCEEDED).count() == JobResult.objects.count() == 499
    row = Job.objects.get(id=refused.id)
    assert (row.state, row.last_error_class) == (State.DEAD, "psycopg.errors.InvalidTextRepresentation")
    assert "invalid input syntax for type json" in row.last_error
    attempt = Attempt.objects.get()
    assert (attempt.job_id, attempt.outcome, attempt.failure_class) == (refused.id, "failed", FailureClass.RESULT)


@pytest.mark.parametrize("when", ["NEW.state = 'succeeded'", "NEW.state <> 'running'"])
def test_a_completion_that_a_trigger_of_the_site_refuses_is_kept_and_sent_again(
    when: str, queue_connection: Connection, refuse_job: Callable[..., None]
) -> None:
    [refused, other] = add_jobs(2, running=True)
    refuse_job(refused.id, when=when)
    settled = settle_all(queue_connection, ending(refused), ending(other))
    assert set(settled.written) == {other.id}
    assert [one for one, _ in settled.refused] == [ending(refused)]
    assert (settled.busy, settled.lost) == ([], [])
    assert Job.objects.get(id=refused.id).state == State.RUNNING, "a run that succeeded is not made dead"


def test_a_refused_ending_whose_job_was_taken_over_is_lost_with_its_evidence_kept(
    queue_connection: Connection, refuse_job: Callable[..., None]
) -> None:
    [refused] = add_jobs(1, expired=True)
    take_over_expired(queue_connection)
    refuse_job(refused.id, when="NEW.state = 'succeeded'")
    assert settle_all(queue_connection, ending(refused)).lost == [ending(refused)]


def test_a_result_past_a_limit_of_the_server_is_buried_and_never_blocks_the_others(
    queue_connection: Connection,
) -> None:
    [refused, other] = add_jobs(2, running=True)
    nested = "[" * 30_000 + "]" * 30_000
    settled = settle_all(queue_connection, ending(refused, result=nested), ending(other))
    assert settled.written[other.id].state == State.SUCCEEDED
    assert settled.written[refused.id].state == State.DEAD


# -- takeovers ---------------------------------------------------------------------------------------------


def test_two_takeovers_at_once_take_each_job_once(open_connection: OpenConnection, threads: ThreadPoolExecutor) -> None:
    jobs = add_jobs(300, expired=True)
    barrier = threading.Barrier(2)

    def take_all(connection: Connection) -> list[int]:
        taken: list[int] = []
        barrier.wait(PATIENCE_SECONDS)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline and Job.objects.filter(state=State.RUNNING).exists():
            taken += [one.job.id for one in take_over_expired(connection)]
        django_connection.close()
        return taken

    left, right = threads.map(take_all, [open_connection(), open_connection()])
    assert sorted(left + right) == [job.id for job in jobs]
    assert set(Job.objects.values_list("state", "lease_losses", "version")) == {
        (State.RETRYING, 1, jobs[0].version + 1)
    }
    assert Attempt.objects.filter(outcome=AttemptOutcome.LOST).count() == len(jobs)


def test_an_open_takeover_is_skipped_by_the_next_one(
    queue_connection: Connection, second_connection: Connection
) -> None:
    add_jobs(2, expired=True)
    with queue_connection.transaction():
        assert len(take_over_expired(queue_connection)) == 2
        late = JobFactory(expired=True)
        assert [one.job.id for one in take_over_expired(second_connection)] == [late.id]
    assert take_over_expired(second_connection) == []


def test_a_renewed_lease_is_not_taken_over(queue_connection: Connection, second_connection: Connection) -> None:
    """The takeover listed the job before the heartbeat committed: it decides by the locked row."""
    job = JobFactory(running=True)
    expire(job.id)
    with second_connection.transaction():
        second_connection.execute(
            "UPDATE pgqueue_job SET lease_until = statement_timestamp() + interval '1 minute' WHERE id = %s", [job.id]
        )
        assert take_over_expired(queue_connection) == []
    assert take_over_expired(queue_connection) == []
    assert Job.objects.get().state == State.RUNNING


def test_one_bad_row_is_reported_and_the_others_are_taken_over(
    queue_connection: Connection, refuse_job: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    jobs = add_jobs(10, expired=True)
    refuse_job(jobs[4].id, when="NEW.state <> 'running'")
    with caplog.at_level(logging.ERROR):
        taken = take_over_expired(queue_connection)
    assert {one.job.id for one in taken} == {job.id for job in jobs if job is not jobs[4]}
    (line,) = (record.getMessage() for record in caplog.records)
    assert line.startswith(f"takeover.failed job={jobs[4].id} error=RaiseException sqlstate=P0001 at=")
    assert list(Job.objects.filter(state=State.RUNNING).values_list("id", flat=True)) == [jobs[4].id]


def test_a_batch_of_bad_rows_does_not_keep_the_others_from_being_taken_over(
    queue_connection: Connection, second_connection: Connection
) -> None:
    overdue = add_jobs(100, running=True)
    expire(*(job.id for job in overdue))
    other = JobFactory(expired=True)
    with second_connection.transaction():
        second_connection.execute(
            "SELECT FROM pgqueue_job WHERE id = ANY (%s) FOR UPDATE", [[job.id for job in overdue]]
        )
        assert [one.job.id for one in take_over_expired(queue_connection)] == [other.id]


def test_a_lost_job_that_was_asked_to_stop_is_cancelled_and_never_claimed_again(queue_connection: Connection) -> None:
    job = JobFactory(running=True)
    assert act_now("ask_to_stop", job).outcome == Outcome.APPLIED
    expire(job.id)
    [taken] = take_over_expired(queue_connection)
    assert taken.verdict.target == State.CANCELLED
    for lane in Lane:
        assert claim(queue_connection, claimant(), lane=lane, limit=1) == []
    row = Job.objects.get()
    assert (row.state, row.worker_id, row.lease_until) == (State.CANCELLED, None, None)
    assert row.finished_at is not None


def test_a_takeover_decides_by_a_stop_request_committed_just_before_it_got_the_lock(
    queue_connection: Connection, act_in_background: ActInBackground, stopped_before_commit: Stop
) -> None:
    job = JobFactory(expired=True)
    asked = act_in_background("ask_to_stop", job.id, version_seen=job.version)
    stopped_before_commit.wait_until_reached()
    assert take_over_expired(queue_connection) == []
    stopped_before_commit.release()
    assert asked.result().outcome == Outcome.APPLIED
    assert [one.verdict.target for one in take_over_expired(queue_connection)] == [State.CANCELLED]


@pytest.fixture
def refuse_job(queue_connection: Connection) -> Iterator[Callable[..., None]]:
    """A function that lets a trigger raise for updates of one job that fulfil a condition."""

    def refuse(id: int, *, when: str) -> None:
        queue_connection.execute(
            """
            CREATE FUNCTION test_refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'refused by the test'; END $$
            """
        )
        queue_connection.execute(
            f"""
            CREATE TRIGGER test_refuse BEFORE UPDATE ON pgqueue_job
            FOR EACH ROW WHEN (NEW.id = {id} AND {when}) EXECUTE FUNCTION test_refuse()
            """
        )

    yield refuse
    queue_connection.execute("DROP FUNCTION IF EXISTS test_refuse() CASCADE")
