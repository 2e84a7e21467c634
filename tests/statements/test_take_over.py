"""Taking jobs from owners whose lease ran out: list, lock and decide, write."""

import threading

import psycopg
import pytest

from pgqueue.models import Attempt, Worker
from pgqueue.protocol.registering import register, send_beat
from pgqueue.protocol.taking_over import Verdict, list_expired, take_over
from pgqueue.protocol.upkeep import prune_old
from pgqueue.states import Lane, Recovery, Stage, State
from pgqueue.takeover import take_over_expired
from tests.factories import JobFactory, WorkerFactory, from_now
from tests.statements.doing import OTHER_WORKER, WORKER, claim_ids, columns, end, ending, fresh, lock, renew_one

quick = pytest.mark.django_db
racing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
UNKNOWN = {"stage": Stage.OUTCOME_UNKNOWN, "unknown_effects": 1}


def retrying(job):
    return Verdict(State.RETRYING, 0.0, "lost")


def taken_ids(connection):
    return [taken.job.id for taken in take_over_expired(connection)]


@quick
def test_a_lost_job_is_due_at_once_runs_alone_and_charges_nobody(session):
    job = JobFactory(expired=True, attempts=2)
    assert taken_ids(session) == [job.id]
    row = fresh(job)
    assert (row.state, row.lane, row.lease_losses, row.attempts) == ("retrying", Lane.ALONE, 1, 2)
    assert (row.version, row.worker_id, row.lease_until, row.finished_at) == (3, None, None, None)
    assert row.fence > job.fence
    assert f"Worker {WORKER} was lost under fence {job.fence}" in row.last_error
    attempt = Attempt.objects.get(job_id=job.id)
    assert (attempt.fence, attempt.worker_id, attempt.number, attempt.outcome) == (job.fence, WORKER, 3, "lost")
    assert (attempt.failure_class, attempt.started_at) == ("lease_lost", None)
    assert claim_ids(session, lane=Lane.ALONE) == [job.id]


HALF = WorkerFactory.lease_seconds / 2


@quick
@pytest.mark.parametrize(
    ("parent", "lane", "losses"),
    [
        ({}, Lane.ALONE, 2),
        ({"heartbeat_at": -HALF + 1}, Lane.ALONE, 2),
        ({"heartbeat_at": -HALF - 1}, Lane.ISOLATED, 1),
        ({"stopped": True}, Lane.ISOLATED, 1),
    ],
    ids=["alive", "beating", "silent", "stopped"],
)
def test_a_loss_in_quarantine_counts_if_the_worker_that_started_it_lives(session, parent, lane, losses):
    if "heartbeat_at" in parent:
        parent = {"heartbeat_at": from_now(parent["heartbeat_at"])}
    quarantine = WorkerFactory(parent_id=WorkerFactory(**parent).pk, silent=True)
    job = JobFactory(expired=True, alone=True, worker_id=quarantine.pk)
    assert taken_ids(session) == [job.id]
    row = fresh(job)
    assert (row.state, row.lane, row.lease_losses) == ("retrying", lane, losses)
    assert ("this loss does not count" in row.last_error) is (lane is Lane.ISOLATED)


@quick
def test_the_first_loss_is_not_asked_whose_it_was(session):
    """Not even in a quarantine, which takes no such jobs: it says nothing about the job."""
    quarantine = WorkerFactory(parent_id=WorkerFactory(stopped=True).pk, silent=True)
    job = JobFactory(expired=True, worker_id=quarantine.pk)
    assert taken_ids(session) == [job.id]
    assert (fresh(job).lane, fresh(job).lease_losses) == (Lane.ALONE, 1)


@quick
@pytest.mark.parametrize("by", ["a worker of its own", "a quarantine lost with its parent"])
def test_a_loss_of_an_isolated_job_always_counts(session, by):
    parent = None if by == "a worker of its own" else WorkerFactory(stopped=True).pk
    job = JobFactory(expired=True, isolated=True, worker_id=WorkerFactory(parent_id=parent, silent=True).pk)
    assert taken_ids(session) == [job.id]
    assert (fresh(job).lane, fresh(job).lease_losses) == (Lane.ISOLATED, 2)


@quick
def test_a_job_that_kills_quarantine_and_parent_comes_to_an_end(session):
    """Once the loss that does not count, then as often as any other."""
    quarantine = WorkerFactory(parent_id=WorkerFactory(stopped=True).pk, silent=True)
    job = JobFactory(expired=True, alone=True, lease_losses=3, worker_id=quarantine.pk)
    assert taken_ids(session) == [job.id]
    assert (fresh(job).state, fresh(job).lane) == ("retrying", Lane.ISOLATED)
    job = JobFactory(expired=True, isolated=True, lease_losses=3)
    assert taken_ids(session) == [job.id]
    assert (fresh(job).state, fresh(job).lease_losses) == ("dead", 4)
    assert "lost 3 times alone" in fresh(job).last_error


@quick
@pytest.mark.parametrize(
    "shape",
    [
        {"running": True},
        {"stop_requested": True},
        {},
        {"retrying": True},
        {"paused": True},
        {"unknown": True},
        {"probing": True},
        {"succeeded": True},
        {"dead": True},
        {"cancelled": True},
    ],
    ids=lambda shape: "-".join(shape) or "pending",
)
def test_what_has_not_expired_is_not_taken_even_by_its_id(session, shape):
    job = JobFactory(**shape)
    before = columns(job)
    assert list_expired(session, limit=10) == []
    assert take_over(session, [job.id], retrying) == []
    assert columns(job) == before


@quick
@pytest.mark.parametrize("recovery", list(Recovery))
@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ({}, dict.fromkeys(Recovery, State.RETRYING)),
        ({"stop_requested": True}, dict.fromkeys(Recovery, State.CANCELLED)),
        ({"lease_losses": 3, "lane": Lane.ALONE}, dict.fromkeys(Recovery, State.DEAD)),
        ({"stage": Stage.RESULT_KNOWN}, dict.fromkeys(Recovery, State.RETRYING)),
        ({"stage": Stage.CONFIRMING}, dict.fromkeys(Recovery, State.RETRYING)),
        (UNKNOWN, {**dict.fromkeys(Recovery, State.UNKNOWN), Recovery.IDEMPOTENT: State.RETRYING}),
        ({**UNKNOWN, "stop_requested": True}, dict.fromkeys(Recovery, State.UNKNOWN)),
        ({**UNKNOWN, "lease_losses": 3, "lane": Lane.ALONE}, dict.fromkeys(Recovery, State.UNKNOWN)),
    ],
    ids=["nothing", "stop", "exhausted", "known", "confirming", "unknown", "unknown-stop", "unknown-exhausted"],
)
def test_the_decision_table_is_what_the_row_shows(session, recovery, shape, expected):
    job = JobFactory(expired=True, recovery=recovery, **shape)
    assert taken_ids(session) == [job.id]
    row = fresh(job)
    assert row.state == expected[recovery]
    assert (row.stage, row.unknown_effects) == (job.stage, job.unknown_effects)


@quick
@pytest.mark.case("A14")
def test_a_job_that_loses_every_lease_comes_to_an_end(session):
    """The first loss may be a neighbour's fault; three more, alone, are its own."""
    job = JobFactory()
    starts = 0
    for lane in (Lane.PLAIN, *[Lane.ALONE] * 9):
        session.execute("UPDATE pgqueue_job SET run_at = statement_timestamp() WHERE state = 'retrying'")
        starts += len(claim_ids(session, lane=lane))
        session.execute("UPDATE pgqueue_job SET lease_until = statement_timestamp() WHERE state = 'running'")
        take_over_expired(session)
    row = fresh(job)
    assert (starts, row.state, row.attempts, row.lease_losses) == (4, "dead", 0, 4)
    assert row.last_error_class == "pgqueue.exceptions.JobLostError"
    assert set(Attempt.objects.values_list("outcome", flat=True)) == {"lost"}


@quick
@pytest.mark.case("A01")
def test_a_job_is_recovered_though_its_workers_row_was_deleted(session):
    worker = WorkerFactory()
    job = JobFactory(expired=True, worker_id=worker.id)
    worker.delete()
    assert taken_ids(session) == [job.id]


def register_one(connection, **changes):
    facts = {
        "host": "pod-0",
        "pid": 1,
        "release": "0",
        "slots": 1,
        "lease_seconds": 60.0,
        "queues": None,
        "excluded": [],
        "tasks": ["t"],
    }
    return register(connection, **{**facts, **changes})


@quick
@pytest.mark.case("A02")
def test_a_second_process_of_the_same_name_keeps_no_job_of_the_first_alive(session):
    first = register_one(session)
    job = JobFactory(expired=True, worker_id=first)
    second = register_one(session)
    assert second != first
    send_beat(session, worker_id=second, draining=False)
    assert renew_one(session, job, worker_id=second).lost == {job.id}
    assert taken_ids(session) == [job.id]


@quick
def test_silent_workers_are_forgotten_and_live_ones_kept(session):
    silent = WorkerFactory(heartbeat_at=from_now(-7200))
    alive = register_one(session)
    prune_old(session, "prune_workers", after_id=0, retention_seconds=3600.0)
    assert set(Worker.objects.values_list("id", flat=True)) == {alive}
    send_beat(session, worker_id=alive, draining=True, stopped=True)
    row = Worker.objects.get(id=alive)
    assert (row.draining, row.stopped_at is not None, row.tasks, row.queues) == (True, True, ["t"], None)
    send_beat(session, worker_id=silent.id, draining=False)


@quick
@pytest.mark.case("A10")
def test_recovery_needs_no_code_of_the_task(session):
    job = JobFactory(expired=True, task="tests.testapp.tasks.gone")
    assert taken_ids(session) == [job.id]
    assert fresh(job).state == State.RETRYING


@quick
@pytest.mark.case("A16")
def test_a_stop_request_survives_the_worker_and_is_honoured_at_recovery(session):
    job = JobFactory(expired=True, stop_requested=True)
    taken_ids(session)
    assert fresh(job).state == State.CANCELLED
    assert claim_ids(session, lane=Lane.ALONE) == claim_ids(session) == []


@quick
def test_a_batch_is_bounded_and_the_next_takes_the_rest(session):
    ids = [JobFactory(expired=True).id for _ in range(5)]
    assert len(list_expired(session, limit=2)) == 2
    first = [taken.job.id for taken in take_over(session, None, retrying, limit=2)]
    second = [taken.job.id for taken in take_over(session, None, retrying, limit=9)]
    assert (len(first), sorted(first + second)) == (2, ids)


@racing
def test_a_batch_of_locked_rows_does_not_stand_before_the_others(queue_connection, second_connection):
    held, free = [JobFactory(expired=True) for _ in range(4)], JobFactory(expired=True)
    with second_connection.transaction():
        for job in held:
            lock(second_connection, job)
        assert [taken.job.id for taken in take_over(queue_connection, None, retrying, limit=1)] == [free.id]


@quick
@pytest.mark.case("A20")
@pytest.mark.case("E06")
def test_one_bad_row_keeps_none_of_the_others_from_being_recovered(session, caplog):
    jobs = [JobFactory(expired=True) for _ in range(10)]
    bad = jobs[4]
    session.execute(
        f"""
        CREATE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF NEW.id = {bad.id} THEN RAISE EXCEPTION 'not this one'; END IF; RETURN NEW; END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON pgqueue_job FOR EACH ROW EXECUTE FUNCTION pg_temp.refuse()
        """
    )
    assert sorted(taken_ids(session)) == [job.id for job in jobs if job != bad]
    assert fresh(bad).state == State.RUNNING
    assert f"takeover.failed job={bad.id}" in caplog.text


@racing
@pytest.mark.case("A19")
def test_a_takeover_that_is_cut_off_has_changed_nothing(queue_connection, second_connection):
    jobs = [JobFactory(expired=True) for _ in range(3)]
    before = [columns(job) for job in jobs]

    def cut(job):
        second_connection.execute("SELECT pg_terminate_backend(%s)", [queue_connection.info.backend_pid])
        return retrying(job)

    with pytest.raises(psycopg.OperationalError):
        take_over(queue_connection, [job.id for job in jobs], cut)
    assert [columns(job) for job in jobs] == before
    assert Attempt.objects.count() == 0


@racing
def test_two_takeovers_at_once_take_each_job_once(queue_connection, second_connection):
    jobs = [JobFactory(expired=True) for _ in range(3)]
    ids = [job.id for job in jobs]
    with queue_connection.transaction():
        assert len(take_over(queue_connection, ids[:2], retrying)) == 2
        assert [taken.job.id for taken in take_over(second_connection, ids, retrying)] == ids[2:]
    assert {fresh(job).lease_losses for job in jobs} == {1}
    assert Attempt.objects.count() == 3


@racing
def test_a_job_that_is_being_settled_is_left_to_its_owner(queue_connection, second_connection):
    job = JobFactory(expired=True)
    with queue_connection.transaction():
        assert end(queue_connection, ending("complete", job)).written
        assert taken_ids(second_connection) == []
    assert taken_ids(second_connection) == []
    assert fresh(job).state == State.SUCCEEDED


@racing
def test_a_lease_renewed_after_the_list_was_read_is_not_taken(queue_connection, second_connection):
    job = JobFactory(expired=True)
    (listed,) = list_expired(queue_connection, limit=10)
    second_connection.execute("UPDATE pgqueue_job SET lease_until = now() + '1 min' WHERE id = %s", [job.id])
    assert take_over(queue_connection, [listed], retrying) == []


@racing
def test_a_takeover_decides_by_what_was_committed_after_its_list_was_read(queue_connection, second_connection):
    """The owner records a result, late, between the look and the lock: the effect is not unknown any more."""
    job = JobFactory(expired=True, recovery=Recovery.MANUAL, **UNKNOWN)
    assert list_expired(queue_connection, limit=10) == [job.id]
    with second_connection.transaction():
        second_connection.execute(
            "UPDATE pgqueue_job SET stage = 'result_known', unknown_effects = 0 WHERE id = %s", [job.id]
        )
        assert taken_ids(queue_connection) == [], "its row is locked: left for the next look"
    assert taken_ids(queue_connection) == [job.id]
    assert fresh(job).state == State.RETRYING


@racing
def test_a_locked_job_holds_up_no_takeover_of_the_others(queue_connection, second_connection):
    held, free = JobFactory(expired=True), JobFactory(expired=True)
    with second_connection.transaction():
        lock(second_connection, held)
        assert taken_ids(queue_connection) == [free.id]
    assert taken_ids(queue_connection) == [held.id]


@racing
def test_many_takers_recover_many_jobs_once_each(open_connection):
    jobs = [JobFactory(expired=True) for _ in range(40)]
    takers = [open_connection() for _ in range(4)]
    start, taken = threading.Barrier(4), []

    def take(connection):
        start.wait()
        taken.extend(taken_ids(connection))

    threads = [threading.Thread(target=take, args=[connection]) for connection in takers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [job.id for job in jobs]
    assert {fresh(job).version for job in jobs} == {3}


@quick
def test_another_workers_expired_job_is_taken_as_well(session):
    job = JobFactory(expired=True, worker_id=OTHER_WORKER)
    assert taken_ids(session) == [job.id]
