"""What must hold whatever a statement's text. Each makes its own rows, acts, and asserts."""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from dataclasses import replace

import psycopg
from django.db import DatabaseError, connection, transaction

from pgqueue.exceptions import LeaseLostError, OutcomeUnknownError
from pgqueue.models import Effect, Job, Limit, OperatorAction
from pgqueue.operations import Actor, act
from pgqueue.protocol import approving, freezing, operating
from pgqueue.protocol.claiming import Lease
from pgqueue.protocol.completing import complete_first
from pgqueue.protocol.deciding import keep_evidence
from pgqueue.protocol.effects import Call, open_effect
from pgqueue.protocol.inserting import NewJob, Spent, insert_in_window, insert_once, insert_unique
from pgqueue.protocol.marks import as_param, as_params
from pgqueue.protocol.operating import AuditRow
from pgqueue.protocol.settling import EndingKind
from pgqueue.protocol.taking_over import Mine
from pgqueue.protocol.upkeep import declare_limits
from pgqueue.sql import load
from pgqueue.states import Lane, Outcome, Recovery, Stage, State
from pgqueue.takeover import take_over_expired
from pgqueue.verbs import VERBS
from pgqueue.verdicts import verdict
from tests.factories import (
    TASK,
    AttemptFactory,
    BulkActionFactory,
    BulkItemFactory,
    EffectFactory,
    JobFactory,
    LimitFactory,
    MinuteStatFactory,
    ProbeFactory,
    QueueFactory,
    WindowFactory,
    WorkerFactory,
    from_now,
)
from tests.statements.doing import (
    OTHER_WORKER,
    WORKER,
    claim_behind,
    claim_ids,
    claim_picked,
    claimant,
    columns,
    end,
    ending,
    fresh,
    lock,
    mark_of,
    pick,
    renew_one,
)

ADA = Actor(id="1", name="ada")
OTHER_TASK = "tests.testapp.tasks.multiply"
UNKNOWN_EFFECT = {"stage": Stage.OUTCOME_UNKNOWN, "unknown_effects": 1}


@contextmanager
def untouched(*rows):
    """Assert that not one column of the rows changes within."""
    before = [columns(row) for row in rows]
    yield
    assert [columns(row) for row in rows] == before


@contextmanager
def by_the_guard():
    """Assert that the guard refuses, with no row written, before a constraint has to."""
    try:
        with transaction.atomic():
            yield
    except (DatabaseError, psycopg.Error) as error:
        raise AssertionError(f"a constraint had to refuse: {error}") from error


def at_once(sessions, work, *args, **kwargs):
    """Return what `work` gives on the main session while the other holds a lock; assert that it does not wait."""
    future = sessions.in_background(work, sessions.main, *args, **kwargs)
    assert sessions.ends_or_waits(future) == "ended", "it waits for a lock that somebody holds"
    return future.result()


# claim


def left_by_the_claim(**shape):
    def scenario(sessions):
        """A row beside one at the same level that may be claimed, so that the level is walked."""
        QueueFactory(name="frozen", paused=True)
        LimitFactory(id="queue:bound", max_running=5)
        LimitFactory(id="task:tests.testapp.tasks.echo", max_running=5)
        free, left = JobFactory(), JobFactory(**shape)
        with untouched(left):
            tasks = (TASK, "tests.testapp.tasks.echo")
            assert claim_ids(sessions.main, tasks=tasks, excluded=("excluded",)) == [free.id]

    scenario.__name__ = "left_by_the_claim_" + "_".join(shape)
    return scenario


def left_by_the_claim_of_several(**shape):
    def scenario(sessions):
        """The same among several tasks, whose rows are merged."""
        free = [JobFactory(task=task) for task in (TASK, OTHER_TASK)]
        left = JobFactory(**shape)
        with untouched(left):
            claimed = claim_ids(sessions.main, tasks=(TASK, OTHER_TASK), excluded=("excluded",))
            assert claimed == [job.id for job in free]

    scenario.__name__ = "left_by_the_claim_of_several_" + "_".join(shape)
    return scenario


def claim_passes_over_a_lock(sessions):
    held, free = JobFactory(priority=1), JobFactory()
    with sessions.other.transaction():
        lock(sessions.other, held)
        assert at_once(sessions, claim_ids) == [free.id]


def claim_of_several_passes_over_a_lock(sessions):
    held, *free = [JobFactory(task=task) for task in (TASK, OTHER_TASK, TASK)]
    with sessions.other.transaction():
        lock(sessions.other, held)
        assert at_once(sessions, claim_ids, tasks=(TASK, OTHER_TASK)) == [job.id for job in free]


CLAIMS_PASS_OVER_A_LOCK = (claim_passes_over_a_lock, claim_of_several_passes_over_a_lock)


def claimed_though_it_changed(sessions, job, change, *, statement, stop, params):
    """Return what a claim gets that is stopped where it reads the rows: after its snapshot, and before it locks any."""
    text = load(statement).replace(stop, f"{stop} AND pg_advisory_xact_lock_shared(7) IS NOT NULL")
    with sessions.other.transaction():
        sessions.other.execute("SELECT pg_advisory_xact_lock(7)")
        claimed = sessions.in_background(sessions.main.execute, text, params)
        sessions.wait_until_blocking(sessions.other)
        sessions.other.execute(f"UPDATE pgqueue_job SET {change} WHERE id = %s", [job.id])
    return [row[0] for row in claimed.result().fetchall()]


def left_when_it_changed_before_the_lock(change):
    def scenario(sessions):
        changed, free = JobFactory(), JobFactory(task=OTHER_TASK)
        params = {**claimant(tasks=(TASK, OTHER_TASK)).params(), "limit": 5, "from_lowest": False, **as_params({})}
        stop = "AND job.priority * -1 = level.priority * -1"
        claimed = claimed_though_it_changed(sessions, changed, change, statement="claim", stop=stop, params=params)
        assert claimed == [free.id]

    scenario.__name__ = f"left_when_it_changed_before_the_lock_{change.split()[0]}"
    return scenario


def claim_of_several_tasks_goes_by_age(sessions):
    """The oldest rows of one task are locked, more of them than one step of the merge reads."""
    ages = [(TASK, 50), *((OTHER_TASK, 40 - number) for number in range(12)), (TASK, 20), (OTHER_TASK, 10)]
    jobs = [JobFactory(task=task, run_at=from_now(-age)) for task, age in ages]
    with sessions.other.transaction():
        for job in jobs[1:11]:
            lock(sessions.other, job)
        claimed = at_once(sessions, claim_ids, tasks=(TASK, OTHER_TASK), limit=3)
        assert claimed == [jobs[number].id for number in (0, 11, 12)]


def claim_goes_on_behind_its_marks(sessions):
    """Of one group, and of several that are merged; of a served queue alone, whichever groups are marked."""
    tasks = (TASK, OTHER_TASK)
    claimed = [JobFactory(task=task, run_at=from_now(-90)) for task in tasks]
    behind = [JobFactory(task=task, run_at=from_now(-80)) for task in (TASK, *tasks)]
    JobFactory(queue="foreign", run_at=from_now(-85))
    mark = {task: (job.run_at.timestamp(), job.id) for task, job in zip(tasks, claimed, strict=True)}
    for marked, limit, expected in (((TASK,), 1, behind[:1]), (tasks, 9, behind[1:])):
        marks = {(claimed[0].queue, 0, task): mark[task] for task in marked} | {("foreign", 0, TASK): (0.0, 0)}
        params = {**claimant(tasks=tasks, queues=(claimed[0].queue,)).params(), "limit": limit, "from_lowest": False}
        rows = sessions.main.execute(load("claim"), params | as_params(marks)).fetchall()
        assert [row[0] for row in rows] == [job.id for job in expected]


# the claim of one group


def left_behind_the_mark(**shape):
    def scenario(sessions):
        """A row beside one that may be claimed from behind the mark."""
        marked, free = JobFactory(run_at=from_now(-60)), JobFactory(run_at=from_now(-50))
        left = JobFactory(**{"run_at": from_now(-40), **shape})
        with untouched(marked, left):
            assert claim_behind(sessions.main, mark_of(marked)) == [free.id]

    scenario.__name__ = "left_behind_the_mark_" + "_".join(shape)
    return scenario


def a_whole_group_is_left(**shape):
    def scenario(sessions):
        QueueFactory(name="frozen", paused=True)
        LimitFactory(id="queue:bound", max_running=5)
        LimitFactory(id="task:tests.testapp.tasks.echo", max_running=5)
        served, left = JobFactory(), JobFactory(**shape)
        tasks = (TASK, "tests.testapp.tasks.echo")
        queues = (served.queue, "frozen", "bound", "excluded")
        for job, expected in ((served, [served.id]), (left, [])):
            group, _ = mark_of(job)
            with untouched(left):
                claimed = claim_behind(
                    sessions.main, (group, (0.0, 0)), tasks=tasks, queues=queues, excluded=("excluded",)
                )
                assert claimed == expected

    scenario.__name__ = "a_whole_group_is_left_" + "_".join(shape)
    return scenario


def claim_behind_a_mark_passes_over_a_lock(sessions):
    held, free = JobFactory(), JobFactory()
    group, _ = mark_of(held)
    with sessions.other.transaction():
        lock(sessions.other, held)
        assert at_once(sessions, claim_behind, (group, (0.0, 0))) == [free.id]


def left_when_it_changed_before_the_lock_behind_a_mark(change):
    def scenario(sessions):
        changed, free = JobFactory(run_at=from_now(-50)), JobFactory(run_at=from_now(-40))
        group, _ = mark_of(changed)
        params = {**claimant().params(), "limit": 5, **as_param(group, (1.0, 0))}
        stop = "AND job.task = %(mark_task)s::text"
        claimed = claimed_though_it_changed(
            sessions, changed, change, statement="claim_behind", stop=stop, params=params
        )
        assert claimed == [free.id]

    scenario.__name__ = f"left_when_it_changed_before_the_lock_behind_a_mark_{change.split()[0]}"
    return scenario


# the laned claim


def left_by_the_second_half(**shape):
    def scenario(sessions):
        QueueFactory(name="frozen", paused=True)
        left = JobFactory(**shape)
        with untouched(left):
            assert claim_picked(sessions.main, [left.id]) == []

    scenario.__name__ = "left_by_the_second_half_" + "_".join(shape)
    return scenario


def second_half_passes_over_a_lock(sessions):
    held, free = JobFactory(tenanted=True), JobFactory(tenanted=True)
    with sessions.other.transaction():
        lock(sessions.other, held)
        assert at_once(sessions, claim_picked, [held.id, free.id]) == [free.id]


def second_half_leaves_a_busy_key(sessions):
    """Were it not for the guard, the unique index would cost the whole batch."""
    JobFactory(running=True, keyed=True)
    left, free = JobFactory(keyed=True), JobFactory(tenanted=True)
    with by_the_guard(), untouched(left):
        assert claim_picked(sessions.main, [left.id, free.id]) == [free.id]


def second_half_sees_a_job_started_after_the_pick(sessions):
    """The snapshot of the pick is from before: what decides is read after the key is locked."""
    job, twin = JobFactory(keyed=True), JobFactory(keyed=True)
    with sessions.main.transaction(force_rollback=True):
        assert pick(sessions.main) == [job.id]
        sessions.other.execute(
            "UPDATE pgqueue_job SET state = 'running', worker_id = 202, lease_until = now() + '1 min' WHERE id = %s",
            [twin.id],
        )
        try:
            assert claim_picked(sessions.main, [job.id]) == []
        except psycopg.errors.UniqueViolation:
            raise AssertionError("a constraint had to refuse") from None


def recovered_job_goes_first_in_its_key(sessions):
    JobFactory(retrying=True, keyed=True, alone=True)
    younger = JobFactory(keyed=True)
    with untouched(younger):
        assert claim_picked(sessions.main, [younger.id]) == []


def second_half_leaves_a_blocked_key(sessions):
    JobFactory(retrying=True, strict=True, future=True)
    younger = JobFactory(keyed=True)
    with untouched(younger):
        assert claim_picked(sessions.main, [younger.id]) == []


def second_half_needs_the_lock_of_a_limit(sessions):
    """The limit was set after the pick: another session may be counting by it at this moment."""
    LimitFactory(id="tenant:acme", max_running=5)
    left, free = JobFactory(tenanted=True), JobFactory(tenanted=True, tenant="other")
    with untouched(left):
        assert claim_picked(sessions.main, [left.id, free.id], locked=[]) == [free.id]


def second_half_counts_what_runs(sessions):
    LimitFactory(id="tenant:acme", max_running=2)
    JobFactory(tenanted=True, expired=True)
    jobs = [JobFactory(tenanted=True) for _ in range(2)]
    assert claim_picked(sessions.main, [job.id for job in jobs], locked=["tenant:acme"]) == [jobs[0].id]


def second_half_counts_the_tokens(sessions):
    LimitFactory(id="tenant:acme", fresh=True, tokens=1.0)
    jobs = [JobFactory(tenanted=True) for _ in range(2)]
    assert claim_picked(sessions.main, [job.id for job in jobs], locked=["tenant:acme"]) == [jobs[0].id]
    assert claim_picked(sessions.main, [jobs[1].id], locked=["tenant:acme"]) == []


def second_half_sees_a_pause(sessions):
    LimitFactory(id="tenant:acme", paused=True)
    left, free = JobFactory(tenanted=True), JobFactory(tenanted=True, tenant="other")
    with untouched(left):
        assert claim_picked(sessions.main, [left.id, free.id], locked=["tenant:acme"]) == [free.id]


def second_half_counts_what_was_started_after_the_pick(sessions):
    """Session 2 claims and commits between the two halves of session 1."""
    LimitFactory(id="tenant:acme", max_running=1)
    job, other = JobFactory(tenanted=True), JobFactory(tenanted=True)
    with sessions.main.transaction(force_rollback=True):
        assert pick(sessions.main, limit=1) == [job.id]
        sessions.other.execute(
            "UPDATE pgqueue_job SET state = 'running', worker_id = 202, lease_until = now() + '1 min' WHERE id = %s",
            [other.id],
        )
        assert claim_picked(sessions.main, [job.id], locked=["tenant:acme"]) == []


def guarded(lane, **shape):
    """Return a job of the lane: of a pick's own."""
    return JobFactory(**{"alone" if lane is Lane.ALONE else "tenanted": True, **shape})


def in_lane(scenario):
    """Make of a scenario one for each lane, with its name."""

    def of(lane):
        def run(sessions):
            scenario(sessions, lane)

        run.__name__ = f"{scenario.__name__}_{lane.name.lower()}"
        return run

    return of


@in_lane
def pick_takes_one_of_a_key(sessions, lane):
    first = guarded(lane, shard_key="customer:7")
    guarded(lane, shard_key="customer:7", priority=-1)
    assert pick(sessions.main, lane=lane) == [first.id]


@in_lane
def pick_looks_past_a_busy_key(sessions, lane):
    JobFactory(running=True, keyed=True)
    guarded(lane, shard_key="customer:7", priority=1)
    free = guarded(lane)
    assert pick(sessions.main, limit=1, lane=lane) == [free.id]


@in_lane
def pick_needs_the_lock_of_a_limit(sessions, lane):
    """Tried, and not waited for; other tenants go on."""
    LimitFactory(id="tenant:acme", max_running=1)
    guarded(lane, tenant="acme")
    free = guarded(lane, tenant="other")
    with sessions.other.transaction():
        assert len(pick(sessions.other, limit=1, lane=lane)) == 1
        assert at_once(sessions, pick, lane=lane) == [free.id]


@in_lane
def pick_needs_the_lock_of_the_key(sessions, lane):
    guarded(lane, shard_key="customer:7")
    with sessions.other.transaction():
        assert len(pick(sessions.other, lane=lane)) == 1
        assert at_once(sessions, pick, lane=lane) == []


def pick_looks_past_a_key_with_a_recovered_job(sessions):
    JobFactory(retrying=True, keyed=True, alone=True)
    JobFactory(keyed=True, priority=1)
    free = JobFactory(tenanted=True)
    assert pick(sessions.main, limit=1) == [free.id]


def what_an_operator_set_is_not_declared_anew(sessions):
    """By the statements themselves: limits that an operator has changed are not even sent to be declared."""
    mine, gone = LimitFactory(id="tenant:acme", max_running=7), LimitFactory(id="tenant:other", max_running=7)
    params = {"id": "tenant:acme", "max_running": 1, "rate_per_second": None, "burst": None, "weight": 1}
    with untouched(mine, gone):
        sessions.main.execute(load("declare_limit"), params)
        sessions.main.execute(load("forget_limits"), {"ids": ["tenant:acme"]})


def what_is_declared_is_kept(sessions):
    """The tokens too: a restart of a worker fills no bucket."""
    LimitFactory(id="tenant:acme", version=0, fresh=True, tokens=1.0)
    LimitFactory(id="tenant:other", version=0)  # Something is forgotten.
    declare_limits(sessions.main, {"tenant:acme": {"rate_per_second": 0.001, "burst": 3}})
    assert dict(Limit.objects.values_list("id", "tokens")) == {"tenant:acme": 1.0}


# heartbeat


def not_renewed(**shape):
    def scenario(sessions):
        job = JobFactory(running=True, **{"worker_id": WORKER, **shape})
        with untouched(job):
            assert renew_one(sessions.main, job).renewed == set()

    scenario.__name__ = "not_renewed_" + "_".join(shape)
    return scenario


def not_renewed_under_another_fence(sessions):
    job = JobFactory(running=True)
    with untouched(job):
        assert renew_one(sessions.main, job, fence=job.fence - 1).renewed == set()


def only_the_asked_job_is_renewed(sessions):
    job = JobFactory(running=True)
    neighbour = JobFactory(running=True, fence=job.fence)
    with untouched(neighbour):
        renew_one(sessions.main, job, lease_seconds=600.0)


def renewal_passes_over_a_lock(sessions):
    held = JobFactory(running=True)
    with sessions.other.transaction():
        lock(sessions.other, held)
        assert at_once(sessions, renew_one, held).renewed == set()


# endings


def only_the_ended_job_is_settled(kind):
    def scenario(sessions):
        job = JobFactory(running=True)
        neighbour = JobFactory(running=True, fence=job.fence)
        with untouched(neighbour):
            end(sessions.main, ending(kind, job))

    scenario.__name__ = f"only_the_ended_job_is_settled_{kind}"
    return scenario


def not_settled_under_another_fence(kind):
    def scenario(sessions):
        job = JobFactory(running=True)
        with untouched(job):
            assert end(sessions.main, ending(kind, job, fence=job.fence - 1)).written == {}

    scenario.__name__ = f"not_settled_under_another_fence_{kind}"
    return scenario


def not_settled_by_another_worker(kind):
    def scenario(sessions):
        job = JobFactory(running=True)
        with untouched(job):
            assert end(sessions.main, ending(kind, job), worker_id=OTHER_WORKER).written == {}

    scenario.__name__ = f"not_settled_by_another_worker_{kind}"
    return scenario


def unknown_is_not_settled_as_if_known(kind):
    def scenario(sessions):
        job = JobFactory(running=True, unknown_effects=1, recovery=Recovery.MANUAL)
        settled = end(sessions.main, ending(kind, job))
        assert [written.state for written in settled.written.values()] == [State.UNKNOWN]

    scenario.__name__ = f"unknown_is_not_settled_as_if_known_{kind}"
    return scenario


def ending_passes_over_a_lock(kind):
    def scenario(sessions):
        held, free = JobFactory(running=True), JobFactory(running=True)
        with sessions.other.transaction():
            lock(sessions.other, held)
            settled = at_once(sessions, end, ending(kind, held), ending(kind, free))
            assert list(settled.written) == [free.id]

    scenario.__name__ = f"ending_passes_over_a_lock_{kind}"
    return scenario


# completions by themselves


def complete_alone(session, job, *, worker_id=WORKER, **changed):
    """Say whether it was written. A constraint behind the guard is no guard."""
    try:
        with session.transaction():
            return complete_first(session, worker_id=worker_id, ending=ending("complete", job, **changed)) is not None
    except psycopg.IntegrityError as error:
        raise AssertionError from error


def only_the_ended_job_is_completed_alone(sessions):
    job = JobFactory(running=True, worker_id=OTHER_WORKER)
    neighbour = JobFactory(running=True, fence=job.fence)
    with untouched(neighbour):
        assert not complete_alone(sessions.main, job)


def not_completed_alone_under_another_fence(sessions):
    job = JobFactory(running=True)
    with untouched(job):
        assert not complete_alone(sessions.main, job, fence=job.fence - 1)


def not_completed_alone(**row):
    def scenario(sessions):
        job = JobFactory(running=True, **row)
        with untouched(job):
            assert not complete_alone(sessions.main, job)

    scenario.__name__ = f"not_completed_alone_{'_'.join(row)}"
    return scenario


def ending_passes_over_a_lock_alone(sessions):
    held = JobFactory(running=True)
    with sessions.other.transaction():
        lock(sessions.other, held)
        assert not at_once(sessions, complete_alone, held)


# effects


def not_opened(name, *, lease_until=60, **wrong):
    def scenario(sessions):
        job = JobFactory(running=True, lease_until=from_now(lease_until))
        owner = {"id": job.pk, "fence": job.fence, "worker_id": WORKER, **wrong}
        lost = False
        with untouched(job):
            try:
                open_effect(sessions.main, lease_of(job, **owner), CALL)
            except LeaseLostError:
                lost = True
        assert lost, "the worker must be told before it calls"

    scenario.__name__ = f"not_opened_{name}"
    return scenario


CALL = Call(name="sms", key="k:sms", call_deadline_seconds=60, replay_safe_seconds=60, has_begun=False)


def lease_of(job, **facts):
    columns = {name: getattr(job, name) for name in Lease._fields if hasattr(job, name)}
    epochs = {"created_epoch": job.created_at.timestamp(), "run_epoch": job.run_at.timestamp()}
    return Lease(**{**columns, **epochs, "args": None, "kwargs": None, **facts})


def effect_is_opened_once_by_two_calls_of_one_run(sessions):
    """Session 1 opens the effect and has not committed; session 2's call of the same run starts; session 1 commits."""
    job = JobFactory(running=True, recovery=Recovery.MANUAL)
    lease = lease_of(job)
    with sessions.other.transaction():
        open_effect(sessions.other, lease, CALL)
        future = sessions.in_background(open_effect, sessions.main, lease, replace(CALL, has_begun=True))
        sessions.ends_or_waits(future)
    try:
        future.result()
    except OutcomeUnknownError:
        return
    raise AssertionError("decided by what was read before the lock")


def evidence_is_not_kept(name, evidence=None, **wrong):
    def scenario(sessions):
        attempt = AttemptFactory(outcome="lost", evidence=evidence)
        owner = {"id": attempt.job_id, "fence": attempt.fence, "worker_id": WORKER, **wrong}
        with untouched(attempt):
            keep_evidence(sessions.main, **owner, evidence={"ending": "complete"})

    scenario.__name__ = f"evidence_is_not_kept_{name}"
    return scenario


# probes


def lease_one(connection):
    return connection.execute(load("lease_probe"), {"tasks": [TASK], "timeout_seconds": 60.0}).fetchall()


def not_asked_about(**shape):
    def scenario(sessions):
        row = made(JobFactory, {"probing": True, "probe_at": from_now(-1), **shape})
        with by_the_guard(), untouched(row):
            assert lease_one(sessions.main) == []

    scenario.__name__ = "not_asked_about_" + "_".join(shape)
    return scenario


def question_passes_over_a_lock(sessions):
    held, free = (JobFactory(probing=True, probe_at=from_now(-seconds)) for seconds in (2, 1))
    with sessions.other.transaction():
        lock(sessions.other, held)
        assert [row[0] for row in at_once(sessions, lease_one)] == [free.id]


def answer_does_not_count(name, *, probing=True, **wrong):
    def scenario(sessions):
        job = JobFactory(**({"probing": True} if probing else {"retrying": True}))
        question = {"id": job.pk, "fence": job.fence, **wrong}
        assert sessions.main.execute(load("lock_probed"), question).fetchall() == []

    scenario.__name__ = f"answer_does_not_count_{name}"
    return scenario


def answer_is_not_kept(name, *, answered=False, **wrong):
    def scenario(sessions):
        probe = ProbeFactory(answered_at=from_now(-1) if answered else None)
        question = {"id": probe.job_id, "fence": probe.fence, "answer": "happened", "detail": "d", **wrong}
        with untouched(probe):
            sessions.main.execute(load("answer_probe"), question)

    scenario.__name__ = f"answer_is_not_kept_{name}"
    return scenario


# takeover


def verdict_on(job, **changes):
    verdict = {
        "id": job.id,
        "fence": job.fence,
        "stage": job.stage,
        "target": "retrying",
        "delay": 0.0,
        "message": "lost",
        "probe": False,
        "lane": Lane.ALONE,
        "counts": True,
        **changes,
    }
    names = {"delay": "delay_seconds", "counts": "counts"}
    return {names.get(name, f"{name}s"): [value] for name, value in verdict.items()}


def not_taken(shape, **changes):
    def scenario(sessions):
        job = JobFactory(**shape)
        with untouched(job):
            sessions.main.execute(load("take_over"), verdict_on(job, **changes))

    scenario.__name__ = "not_taken_" + "_".join([*shape, *changes])
    return scenario


def only_the_judged_job_is_taken(sessions):
    job = JobFactory(expired=True)
    neighbour = JobFactory(expired=True, fence=job.fence)
    with untouched(neighbour):
        sessions.main.execute(load("take_over"), verdict_on(job))


def not_locked_for_a_takeover(**shape):
    def scenario(sessions):
        job = JobFactory(**shape)
        params = {"ids": [job.id], "limit": 9, "worker_id": 0, "kept": []}
        assert sessions.main.execute(load("lock_expired"), params).fetchall() == []

    scenario.__name__ = "not_locked_for_a_takeover_" + "_".join(shape or ["pending"])
    return scenario


def lost_with_its_parent(**parent):
    """A job was lost in the quarantine of a worker that lives no more, beside others that do."""

    def scenario(sessions):
        WorkerFactory()
        quarantine = WorkerFactory(parent_id=WorkerFactory(**parent).pk)
        WorkerFactory(parent_id=WorkerFactory().pk)
        job = JobFactory(expired=True, alone=True, worker_id=quarantine.pk)
        assert [taken.job.id for taken in take_over_expired(sessions.main)] == [job.id]
        row = fresh(job)
        assert (row.lane, row.lease_losses) == (Lane.ISOLATED, 1)

    scenario.__name__ = "lost_with_its_parent_" + "_".join(parent)
    return scenario


def lost_without_a_parent(sessions):
    """A worker of its own is nobody's quarantine: the job ran alone in it."""
    worker = WorkerFactory(silent=True)
    job = JobFactory(expired=True, alone=True, worker_id=worker.pk)
    take_over_expired(sessions.main)
    row = fresh(job)
    assert (row.lane, row.lease_losses) == (Lane.ALONE, 2)


def takeover_passes_over_a_lock(sessions):
    held, free = JobFactory(expired=True), JobFactory(expired=True)
    with sessions.other.transaction():
        lock(sessions.other, held)
        assert [taken.job.id for taken in at_once(sessions, take_over_expired)] == [free.id]


def takeover_leaves_out_what_the_caller_runs(sessions):
    mine, lost = JobFactory(expired=True), JobFactory(expired=True)
    kept = Mine(worker_id=mine.worker_id, ids=[mine.id])
    assert [taken.job.id for taken in take_over_expired(sessions.main, kept)] == [lost.id]


def takeover_takes_what_another_worker_lost(sessions):
    """The caller ran it too, under an earlier lease, and still does."""
    job = JobFactory(expired=True)
    kept = Mine(worker_id=job.worker_id + 1, ids=[job.id])
    assert [taken.job.id for taken in take_over_expired(sessions.main, kept)] == [job.id]


def takeover_decides_by_what_the_owner_committed(sessions):
    """Its owner, late, holds the lock with a recorded result uncommitted; the takeover starts; the owner commits."""
    job = JobFactory(expired=True, recovery=Recovery.MANUAL, **UNKNOWN_EFFECT)
    with sessions.other.transaction():
        sessions.other.execute(
            "UPDATE pgqueue_job SET stage = 'result_known', unknown_effects = 0 WHERE id = %s", [job.id]
        )
        future = sessions.in_background(take_over_expired, sessions.main)
        sessions.ends_or_waits(future)
    future.result()
    assert fresh(job).state != State.UNKNOWN, "decided by what was read before the lock"


def session_is_left(case, *, lease_seconds=-60, of=0, works_seconds=0.0, sleeps=1.1, role=None):
    """Return a scenario: a session holds a job's row, and what is wrong with it keeps it from being ended."""

    def scenario(sessions):
        job = JobFactory(running=True, lease_until=from_now(lease_seconds))
        sessions.other.execute("BEGIN")
        lock(sessions.other, job)
        name = f"pgqueue job={job.id} fence={job.fence + of}"
        sessions.other.execute("SELECT set_config('application_name', %s, true)", [name])
        working = sessions.in_background(sessions.other.execute, "SELECT pg_sleep(%s)", [works_seconds])
        if not works_seconds:
            working.result()
        sessions.main.execute("SELECT pg_sleep(%s)", [sleeps])
        try:
            assert not _ended(sessions.main, role)
        finally:
            with suppress(psycopg.Error):
                working.result()
                sessions.other.execute("ROLLBACK")

    scenario.__name__ = f"session_is_left_{case}"
    return scenario


def _ended(connection, role):
    with connection.transaction(force_rollback=True):
        if role is not None:
            connection.execute(f"CREATE ROLE {role} IN ROLE pg_read_all_stats")
            connection.execute(f"GRANT SELECT ON pgqueue_job TO {role}")
            connection.execute(f"SET LOCAL ROLE {role}")
        asked = {"expired_seconds": 0.0, "ends": True, "limit": 9}
        try:
            return [ended for *_, ended in connection.execute(load("find_blockers"), asked).fetchall() if ended]
        except psycopg.errors.InsufficientPrivilege as error:
            raise AssertionError("asked to end what it may not end") from error


# operators


BOUNDS = {"max_running": 3, "rate_per_second": 1.0, "burst": 2, "weight": 4}


MANY = {verb.statement or verb.name for verb in VERBS.values() if verb.takes_many}


def change(verb, row, **changes):
    params = {"id": row.pk, "version_seen": row.version, "actor_name": "ada", "reason": "why", "for_seconds": None}
    params |= {**BOUNDS, "actor_id": ADA.id}
    params |= {"delay_seconds": 0.0, "priority": 7, "queue": "other"}
    if verb == "break_lease":
        params |= {
            "target": "retrying",
            "probe": False,
            "message": "m",
            "fence": row.fence,
            "stage": row.stage,
            "worker_id": WORKER,
        }
    if verb == "reconcile":
        params |= {"fence": row.fence, **verdict_on_an_effect(row)}
    if verb == "clone":
        params |= {"is_anew": False, "args": None, "kwargs": None}
    if verb == "assign":
        params |= {"taken_by": "bob"}
    if verb in MANY:
        return operating.change_many("default", verb, [{**params, **changes}]).get(row.pk)
    return operating.change("default", verb, {**params, **changes})


VERBS_OF = {"reconcile": ("happened_finish", {"effect": "sms", "remote_reference": "r", "evidence": "e"})}
VERBS_OF["assign"] = ("take", {})
NEEDY = ("set_limit", "set_rate", "set_weight", "reschedule", "reprioritise", "move_queue")
WANTED = {**BOUNDS, "delay_seconds": 60.0, "priority": 7, "queue": "other"}


def verdict_on_an_effect(job, *, effect="sms", stage=Stage.RESULT_KNOWN, target=State.RETRYING):
    effects = Effect.objects.filter(job_id=job.pk).values("name", "stage", "replay_until")
    return verdict(list(effects), effect, stage=stage, target=target)


def made(make, shape, *, effects=("sms",), **facts):
    """Make a row and, where one says that its outcome is unknown, the effect."""
    row = make(**shape)
    for name in effects if getattr(row, "unknown_effects", 0) else ():
        EffectFactory(job_id=row.pk, name=name, **facts)
    return row


def verdict_refused(name, *, past=True, effects=("sms",), **verdict_facts):
    def scenario(sessions):
        row = made(JobFactory, {"unknown": True, "unknown_effects": len(effects)}, past=past, effects=effects)
        given = verdict_on_an_effect(row, **verdict_facts)
        with by_the_guard(), untouched(row):
            change("reconcile", row, **given)

    scenario.__name__ = f"verdict_refused_{name}"
    return scenario


def worker_with_leases_is_not_forgotten(sessions):
    row = WorkerFactory(silent=True)
    JobFactory(expired=True, worker_id=row.pk)
    with by_the_guard(), untouched(row):
        change("forget_worker", row)


def settled_effect_is_not_settled_again(sessions):
    job = made(JobFactory, {"unknown": True}, effects=("mail",))
    effect = EffectFactory(job_id=job.pk, name="sms", stage=Stage.RESULT_KNOWN, remote_reference="first")
    with by_the_guard(), untouched(job, effect):
        change("reconcile", job)


def refused(verb, make, shape, **changes):
    def scenario(sessions):
        row = made(make, shape)
        with by_the_guard(), untouched(row):
            change(verb, row, **changes)

    scenario.__name__ = f"refused_{verb}_" + "_".join([*shape, *changes])
    return scenario


FENCED = ("break_lease", "reconcile")


def only_the_target_changes(verb, make, shape):
    def scenario(sessions):
        target = made(make, shape)
        neighbour = made(make, {**shape, **({"fence": target.fence} if verb in FENCED else {})})
        with untouched(neighbour):
            change(verb, target)

    scenario.__name__ = f"only_the_target_changes_{verb}"
    return scenario


def in_a_thread(verb, row, **changes):
    name, params = VERBS_OF.get(verb, (verb, WANTED if verb in NEEDY else {}))
    usual = {"version_seen": row.version, "actor": ADA, "reason": "why", "params": params}
    try:
        return act(name, row.pk, **{**usual, **changes})
    finally:
        connection.close()


def verb_decides_under_the_lock(verb, make, shape, table):
    def scenario(sessions):
        """Session 1 holds the lock, session 2's verb starts, session 1 writes a new version and commits."""
        row = made(make, shape)
        with sessions.other.transaction():
            sessions.other.execute(f"SELECT FROM {table} FOR NO KEY UPDATE")
            future = sessions.in_background(in_a_thread, verb, row)
            sessions.wait_until_blocking(sessions.other)
            sessions.other.execute(f"UPDATE {table} SET version = version + 1")
        answer = future.result()
        assert (answer.outcome, answer.version_found) == (Outcome.CHANGED, row.version + 1)

    scenario.__name__ = f"verb_decides_under_the_lock_{verb}"
    return scenario


def break_lease_decides_by_what_the_owner_committed(sessions):
    job = JobFactory(running=True, recovery=Recovery.MANUAL, **UNKNOWN_EFFECT)
    with sessions.other.transaction():
        sessions.other.execute(
            "UPDATE pgqueue_job SET stage = 'result_known', unknown_effects = 0 WHERE id = %s", [job.id]
        )
        future = sessions.in_background(in_a_thread, "break_lease", job)
        sessions.wait_until_blocking(sessions.other)
    assert future.result().state_after == State.RETRYING, "decided by what was read before the lock"


def second_of_two_equal_requests_is_a_replay(sessions):
    """The first holds the row with its action uncommitted; the second starts, waits, and must find it."""
    job = JobFactory()
    audit = {
        **dict.fromkeys(AuditRow.__slots__),
        **{"verb": "hold", "target_kind": "job", "target_id": str(job.id), "outcome": "applied", "actor_name": "ada"},
        **{"reason": "why", "ticket": "", "idempotency_key": "once", "params": {}, "facts": {}},
        **{"version_seen": 1, "version_found": 1, "version_after": 2},
    }
    with sessions.other.transaction():
        lock(sessions.other, job)
        sessions.other.execute(load("hold"), {"id": [job.id], "version_seen": [1]})
        sessions.other.execute(load("audit"), {"rows": json.dumps([audit])})
        future = sessions.in_background(in_a_thread, "hold", job, idempotency_key="once")
        sessions.wait_until_blocking(sessions.other)
    assert future.result().outcome == Outcome.REPLAYED
    assert OperatorAction.objects.filter(outcome="applied").count() == 1


def key_is_applied_once(sessions):
    row = AuditRow(
        **{
            **dict.fromkeys(AuditRow.__slots__),
            **{"verb": "hold", "target_kind": "job", "target_id": "1", "outcome": "applied", "actor_name": "ada"},
            **{"reason": "why", "ticket": "", "idempotency_key": "once", "params": {}, "facts": {}},
        }
    )
    operating.audit("default", [row])
    try:
        with transaction.atomic():
            operating.audit("default", [row])
    except DatabaseError:
        return
    raise AssertionError("one key was applied twice")


ASKED = {
    **dict.fromkeys(("version_seen", "queue", "task", "actor_id")),
    **{"valid_seconds": 60.0, "verb": "hold", "target_kind": "job", "target_id": "1", "actor_name": "ada"},
    **{"reason": "why", "ticket": "", "params": {}, "idempotency_key": "once"},
}


def key_asks_once(sessions):
    approving.ask("default", ASKED)
    try:
        with transaction.atomic():
            approving.ask("default", ASKED)
    except DatabaseError:
        return
    raise AssertionError("one key asked twice")


def key_is_spent_once(sessions):
    new = NewJob(
        queue="default",
        task=TASK,
        args=None,
        kwargs=None,
        priority=0,
        lane=Lane.PLAIN,
        max_attempts=8,
        recovery="undeclared",
    )
    insert_once("default", new, operation_key="k", digest="d")
    assert isinstance(insert_once("default", new, operation_key="k", digest="d"), Spent)


# bulk actions


def bulk_runs_once(sessions):
    bulk = BulkActionFactory()
    assert freezing.start("default", bulk.pk, actor=("1", "ada"), reason="why", ticket="", spread_seconds=0)
    assert not freezing.start("default", bulk.pk, actor=("1", "ada"), reason="another", ticket="", spread_seconds=0)


def only_a_running_bulk_stops(sessions):
    assert not freezing.stop("default", BulkActionFactory().pk, by="ada")


def only_a_running_bulk_ends(sessions):
    assert not freezing.finish("default", BulkActionFactory().pk)


def bulk_with_open_rows_does_not_end(sessions):
    bulk = BulkActionFactory(state="running")
    BulkItemFactory(bulk_id=bulk.pk, job_id=1)
    assert not freezing.finish("default", bulk.pk)


def outcome_of_a_row_stays(sessions):
    bulk = BulkActionFactory(state="running")
    item = BulkItemFactory(bulk_id=bulk.pk, job_id=1)
    for outcome in ("applied", "changed"):
        freezing.note("default", bulk.pk, [freezing.Result(1, outcome, 1, "dead", 1)])
    item.refresh_from_db()
    assert item.outcome == "applied"


UNIQUE = NewJob(
    queue="default",
    task=TASK,
    args=None,
    kwargs=None,
    priority=0,
    lane=Lane.PLAIN,
    max_attempts=8,
    recovery="undeclared",
    unique_key="k",
)


def unique_key_is_taken_once(sessions):
    for until_started in (None, True):
        new = UNIQUE._replace(until_started=until_started)
        first = insert_unique("default", new, replacing=False)
        with by_the_guard():
            assert insert_unique("default", new, replacing=False) == Spent(first.id, first.created_at, digest="")


def window_is_opened_once(sessions):
    first = insert_in_window("default", UNIQUE, window_seconds=60)
    with by_the_guard():
        assert insert_in_window("default", UNIQUE, window_seconds=60).id == first.id
        assert Job.objects.count() == 1


def only_what_waits_is_replaced(**shape):
    def scenario(sessions):
        """Beside the one that the unique index lets through, each of another kind."""
        left = JobFactory(**{"unique_key": "k", "until_started": True, **shape})
        with untouched(left):
            params = {**UNIQUE._asdict(), "until_started": True}
            assert sessions.main.execute(load("replace_waiting"), params).fetchall() == []

    scenario.__name__ = "only_what_waits_is_replaced_" + "_".join(shape)
    return scenario


KINDS = tuple(str(kind) for kind in EndingKind)


# pruning


def prune_all(connection):
    params = {"after_id": 0, "limit": 1_000, "retention_seconds": 7 * 86_400.0, "dead_retention_seconds": 30 * 86_400.0}
    return connection.execute(load("prune_jobs"), params).fetchone()


def left_by_pruning(days, **traits):
    def scenario(sessions):
        job = JobFactory(**traits, finished_at=from_now(-days * 86_400))
        prune_all(sessions.main)
        assert Job.objects.filter(pk=job.pk).exists()

    scenario.__name__ = f"left_by_pruning_after_{days}_days_" + "_".join(traits)
    return scenario


def pruning_passes_over_a_lock(sessions):
    held, free = (JobFactory(succeeded=True, finished_at=from_now(-8 * 86_400)) for _ in range(2))
    with sessions.other.transaction():
        lock(sessions.other, held)
        assert at_once(sessions, prune_all)[2] == 1
    assert [job.pk for job in Job.objects.all()] == [held.pk]
    assert free.pk != held.pk


OLD = {
    "prune_workers": (WorkerFactory, "heartbeat_at"),
    "prune_windows": (WindowFactory, "ends_at"),
    "prune_minute_stats": (MinuteStatFactory, "minute"),
}


def prune_old_rows(statement):
    def run(connection):
        return connection.execute(load(statement), {"after_id": 0, "limit": 10, "retention_seconds": 3600.0}).fetchone()

    return run


def young_rows_are_left(statement):
    def scenario(sessions):
        factory, column = OLD[statement]
        row = factory(**{column: from_now(-60)})
        with untouched(row):
            prune_old_rows(statement)(sessions.main)

    scenario.__name__ = f"young_rows_are_left_by_{statement}"
    return scenario


def held_rows_are_passed_over(statement):
    def scenario(sessions):
        factory, column = OLD[statement]
        held, _ = factory(**{column: from_now(-7200)}), factory(**{column: from_now(-7260)})
        with sessions.other.transaction():
            sessions.other.execute(f"SELECT FROM {held._meta.db_table} WHERE id = %s FOR UPDATE", [held.pk])
            assert at_once(sessions, prune_old_rows(statement))[2] == 1
        assert [row.pk for row in type(held).objects.all()] == [held.pk]

    scenario.__name__ = f"held_rows_are_passed_over_by_{statement}"
    return scenario
