"""Claims of many sessions at once, and beside sessions that hold locks."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from django.db import transaction as django_transaction

from pgqueue.models import Job
from pgqueue.protocol.claiming import Lease, claim
from pgqueue.protocol.connecting import transaction
from pgqueue.protocol.leasing import renew
from pgqueue.protocol.looking import look
from pgqueue.protocol.settling import Ending, EndingKind, settle
from pgqueue.sql import load
from pgqueue.states import Lane, State
from pgqueue.takeover import take_over_expired
from tests.factories import JobFactory, QueueFactory, from_now
from tests.statements.doing import NEW_ROUND

from .conftest import PATIENCE_SECONDS, Connection
from .rows import WORKER, add_jobs, claimant, expire, snapshot

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

OpenConnection = Callable[[], Connection]
TASKS = tuple(f"tests.testapp.tasks.{name}" for name in ("add", "echo", "multiply"))


def complete(connection: Connection, *leases: Lease) -> None:
    endings = [Ending(EndingKind.COMPLETE, lease.id, lease.fence) for lease in leases]
    settled = settle(connection, worker_id=leases[0].worker_id, endings=endings)
    assert set(settled.written) == {lease.id for lease in leases}


def ids_of(leases: list[Lease]) -> list[int]:
    return [lease.id for lease in leases]


# -- the plain lane ----------------------------------------------------------------------------------------


MIXED = {
    "one task": lambda number: {},
    "several tasks": lambda number: {"task": TASKS[number % 3]},
    "several tasks and queues": lambda number: {"task": TASKS[number % 3], "queue": f"queue{number % 4}"},
}


@pytest.mark.parametrize("mixed", MIXED.values(), ids=MIXED)
def test_ten_sessions_claim_a_thousand_jobs_once_each_and_in_order(
    open_connection: OpenConnection, threads: ThreadPoolExecutor, mixed: Callable[[int], dict[str, Any]]
) -> None:
    sessions, rounds = 10, 100
    chance = random.Random(7)
    jobs = add_jobs(
        sessions * rounds,
        vary=lambda number: {
            "priority": chance.choice((-5, 0, 0, 9)),
            "run_at": from_now(-chance.randrange(1, 60)),
            **mixed(chance.randrange(12)),
        },
    )
    order = [job.id for job in Job.objects.order_by("-priority", "run_at", "id")]
    before = {job.id: job for job in jobs}
    barrier = threading.Barrier(sessions)
    last_fence = JobFactory(succeeded=True).fence

    def claim_each_round(number: int) -> list[Lease]:
        connection = open_connections[number]
        got = []
        for _ in range(rounds):
            barrier.wait(PATIENCE_SECONDS)
            got += claim(connection, claimant(WORKER + number, tasks=TASKS), lane=Lane.PLAIN, limit=1)
        return got

    open_connections = [open_connection() for _ in range(sessions)]
    claimed = list(threads.map(claim_each_round, range(sessions)))

    assert [len(leases) for leases in claimed] == [rounds] * sessions
    for number in range(rounds):
        leases = [leases[number] for leases in claimed]
        assert {lease.id for lease in leases} == set(order[number * sessions : (number + 1) * sessions])
        fences = {lease.fence for lease in leases}
        assert len(fences) == sessions
        assert min(fences) > last_fence
        last_fence = max(fences)
    after = {job.id: job for job in Job.objects.filter(id__in=before)}
    assert {job.state for job in after.values()} == {State.RUNNING}
    for lease in (lease for leases in claimed for lease in leases):
        row = after[lease.id]
        assert (row.worker_id, row.fence, row.version) == (lease.worker_id, lease.fence, lease.version)
        assert row.version == before[lease.id].version + 1


@pytest.mark.parametrize("mixed", MIXED.values(), ids=MIXED)
def test_a_batch_is_the_oldest_rows_that_nobody_holds(
    queue_connection: Connection, second_connection: Connection, mixed: Callable[[int], dict[str, Any]]
) -> None:
    """Whatever the mix: what another session has locked is all that is passed over."""
    chance = random.Random(11)
    add_jobs(
        600,
        vary=lambda _: {
            "priority": chance.choice((0, 0, 9)),
            "run_at": from_now(-chance.randrange(1, 300)),
            **mixed(chance.choice((0, 0, 0, 0, 0, 1, 2, 3, 7, 11))),
        },
    )
    waiting = list(Job.objects.order_by("-priority", "run_at", "id").values_list("id", flat=True))
    locked = set(waiting[:60]) | set(chance.sample(waiting, 200))
    expected = [id for id in waiting if id not in locked]
    with second_connection.transaction():
        second_connection.execute("SELECT FROM pgqueue_job WHERE id = ANY (%s) FOR UPDATE", [list(locked)])
        while expected:
            limit = chance.choice((1, 2, 7, 30, 100))
            leases = claim(queue_connection, claimant(tasks=TASKS), lane=Lane.PLAIN, limit=limit)
            assert ids_of(leases) == expected[:limit]
            del expected[:limit]
        assert claim(queue_connection, claimant(tasks=TASKS), lane=Lane.PLAIN, limit=100) == []


def test_concurrent_batches_share_the_jobs_out_without_overlap(
    open_connection: OpenConnection, threads: ThreadPoolExecutor
) -> None:
    jobs = add_jobs(500)
    barrier = threading.Barrier(8)

    def drain(connection: Connection) -> list[list[int]]:
        barrier.wait(PATIENCE_SECONDS)
        batches = []
        while leases := claim(connection, claimant(), lane=Lane.PLAIN, limit=7):
            batches.append(ids_of(leases))
        return batches

    drained = list(threads.map(drain, [open_connection() for _ in range(8)]))
    batches = [batch for batches in drained for batch in batches]
    assert sorted(id for batch in batches for id in batch) == [job.id for job in jobs]
    assert all(batch == sorted(batch) for batch in batches)


def test_a_locked_row_delays_no_claim_and_is_claimed_after_its_release(
    queue_connection: Connection, second_connection: Connection
) -> None:
    [locked, *others] = add_jobs(20)
    with second_connection.transaction():
        second_connection.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [locked.id])
        assert ids_of(claim(queue_connection, claimant(), lane=Lane.PLAIN, limit=100)) == [job.id for job in others]
        assert claim(queue_connection, claimant(), lane=Lane.PLAIN, limit=100) == []
    assert ids_of(claim(queue_connection, claimant(), lane=Lane.PLAIN, limit=100)) == [locked.id]


def test_a_lock_held_for_long_delays_nothing_of_others(
    queue_connection: Connection, second_connection: Connection
) -> None:
    """Each statement below would end in a statement timeout if it waited."""
    queue_connection.execute("SET statement_timeout = '4s'")
    due = add_jobs(2)
    expired = add_jobs(2, running=True)
    expire(*(job.id for job in expired))
    running = add_jobs(3, running=True)
    held = {job.id: job.fence for job in running}
    locked_ids = [due[0].id, expired[0].id, running[0].id]
    endings = [Ending(EndingKind.COMPLETE, job.id, job.fence) for job in running]

    with second_connection.transaction():
        second_connection.execute("SELECT FROM pgqueue_job WHERE id = ANY (%s) FOR UPDATE", [locked_ids])
        renewal = renew(queue_connection, worker_id=WORKER, held=held, lease_seconds=60)
        horizon = look(queue_connection, claimant())
        claimed = claim(queue_connection, claimant(), lane=Lane.PLAIN, limit=10)
        taken = take_over_expired(queue_connection)
        settled = settle(queue_connection, worker_id=WORKER, endings=endings)
        assert second_connection.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS

    assert renewal.renewed == {running[1].id, running[2].id}
    assert renewal.lost == set()
    assert horizon.due_lanes == {Lane.PLAIN}
    assert horizon.next_expiry_seconds is not None
    assert horizon.next_expiry_seconds < 0
    assert ids_of(claimed) == [due[1].id]
    assert [one.job.id for one in taken] == [expired[1].id]
    assert set(settled.written) == {running[1].id, running[2].id}
    assert [ending.id for ending in settled.busy] == [running[0].id]
    assert settled.lost == []

    again = settle(queue_connection, worker_id=WORKER, endings=settled.busy)
    assert set(again.written) == {running[0].id}
    assert [one.job.id for one in take_over_expired(queue_connection)] == [expired[0].id]


def test_rows_of_an_open_transaction_are_not_seen_until_it_commits(queue_connection: Connection) -> None:
    with django_transaction.atomic():
        jobs = add_jobs(3)
        assert claim(queue_connection, claimant(), lane=Lane.PLAIN, limit=10) == []
        assert look(queue_connection, claimant()).due_lanes == set()
    assert ids_of(claim(queue_connection, claimant(), lane=Lane.PLAIN, limit=10)) == [job.id for job in jobs]


def test_a_claim_that_is_not_committed_is_skipped_and_one_rolled_back_is_claimed(
    queue_connection: Connection, second_connection: Connection
) -> None:
    job = JobFactory()
    before = snapshot()
    with second_connection.transaction(force_rollback=True):
        [first] = claim(second_connection, claimant(WORKER + 1), lane=Lane.PLAIN, limit=1)
        assert claim(queue_connection, claimant(), lane=Lane.PLAIN, limit=1) == []
    assert snapshot() == before
    [second] = claim(queue_connection, claimant(), lane=Lane.PLAIN, limit=1)
    assert second.id == first.id == job.id
    assert second.fence > first.fence


def test_a_job_changed_while_the_claim_looked_is_claimed_only_if_it_is_still_due(
    queue_connection: Connection, second_connection: Connection
) -> None:
    """Read Committed re-checks the locked row: held and postponed rows are let go."""
    [held, postponed, other] = add_jobs(3)
    with second_connection.transaction():
        second_connection.execute(
            "UPDATE pgqueue_job SET state = 'paused', held_from = 'pending' WHERE id = %s", [held.id]
        )
        second_connection.execute(
            "UPDATE pgqueue_job SET run_at = run_at + interval '1 day' WHERE id = %s", [postponed.id]
        )
        assert ids_of(claim(queue_connection, claimant(), lane=Lane.PLAIN, limit=10)) == [other.id]
    assert claim(queue_connection, claimant(), lane=Lane.PLAIN, limit=10) == []


# -- shard keys --------------------------------------------------------------------------------------------


def drain_keyed(open_connection: OpenConnection, threads: ThreadPoolExecutor, *, sessions: int, jobs: int) -> None:
    """Let sessions claim batches of ten and complete them until all jobs are done; every error is the test's."""
    barrier = threading.Barrier(sessions)
    deadline = time.monotonic() + 3 * PATIENCE_SECONDS
    done: list[int] = []

    def work(connection: Connection) -> None:
        barrier.wait(PATIENCE_SECONDS)
        while len(done) < jobs:
            assert time.monotonic() < deadline, f"{len(done)} of {jobs} jobs were done in time"
            leases = claim(connection, claimant(), lane=Lane.LANED, limit=10)
            keys = [lease.shard_key for lease in leases]
            assert len(keys) == len(set(keys))
            if leases:
                complete(connection, *leases)
                done.extend(ids_of(leases))

    for future in [threads.submit(work, open_connection()) for _ in range(sessions)]:
        future.result()


def assert_one_after_the_other(key: str, ids: list[int]) -> None:
    """Jobs of a key were claimed in that order, each after the ending of the one before."""
    jobs = list(Job.objects.filter(shard_key=key).order_by("fence"))
    assert [job.id for job in jobs] == ids
    assert {job.state for job in jobs} == {State.SUCCEEDED}
    for ended, begun in pairwise(jobs):
        assert ended.finished_at < begun.claimed_at


def test_jobs_of_one_key_never_run_together_and_keep_their_order(
    open_connection: OpenConnection, threads: ThreadPoolExecutor
) -> None:
    jobs = add_jobs(300, keyed=True, shard_key="account:7")
    drain_keyed(open_connection, threads, sessions=8, jobs=len(jobs))
    assert_one_after_the_other("account:7", [job.id for job in jobs])


def test_each_of_ten_keys_keeps_its_order_under_contention(
    open_connection: OpenConnection, threads: ThreadPoolExecutor
) -> None:
    jobs = add_jobs(200, keyed=True, vary=lambda number: {"shard_key": f"key{number % 10}"})
    drain_keyed(open_connection, threads, sessions=8, jobs=len(jobs))
    for key in range(10):
        assert_one_after_the_other(f"key{key}", [job.id for job in jobs[key::10]])


def test_a_batch_takes_one_job_of_each_key_and_all_without_one(queue_connection: Connection) -> None:
    first, *_ = add_jobs(12, keyed=True, shard_key="a")
    second, *_ = add_jobs(12, keyed=True, shard_key="b")
    tenants = add_jobs(3, tenanted=True)
    leases = claim(queue_connection, claimant(), lane=Lane.LANED, limit=50)
    assert sorted(ids_of(leases)) == sorted([first.id, second.id, *(job.id for job in tenants)])
    assert claim(queue_connection, claimant(), lane=Lane.LANED, limit=50) == []


def test_one_key_in_two_queues_is_two_keys(queue_connection: Connection) -> None:
    jobs = [JobFactory(queue=queue, keyed=True, shard_key="a") for queue in ("left", "right")]
    leases = claim(queue_connection, claimant(), lane=Lane.LANED, limit=50)
    assert sorted(ids_of(leases)) == [job.id for job in jobs]


def test_a_key_picked_by_one_session_is_left_alone_by_the_next_until_its_ending(
    queue_connection: Connection, second_connection: Connection, watching_connection: Connection
) -> None:
    [first, second] = add_jobs(2, keyed=True, shard_key="a")
    other = JobFactory(keyed=True, shard_key="b")
    params = {
        **claimant().params(),
        **NEW_ROUND,
        "limit": 1,
    }
    with transaction(queue_connection, timeout_seconds=PATIENCE_SECONDS):
        rows = queue_connection.execute(load("pick_laned"), params).fetchall()
        picked = [id for id, _, got, *_ in rows if id and got]
        assert picked == [first.id]
        assert held_keys(watching_connection) == 1
        # Session 2 tries the key's lock, does not get it, and goes on with another key.
        [lease] = claim(second_connection, claimant(WORKER + 1), lane=Lane.LANED, limit=10)
        assert lease.id == other.id
        claimed = queue_connection.execute(load("claim_picked"), {**params, "ids": picked, "locked": []}).fetchall()
        assert [row[0] for row in claimed] == [first.id]
        assert claim(second_connection, claimant(WORKER + 1), lane=Lane.LANED, limit=10) == []
    assert held_keys(watching_connection) == 0
    assert claim(second_connection, claimant(WORKER + 1), lane=Lane.LANED, limit=10) == []
    job = Job.objects.get(id=first.id)
    ending = Ending(EndingKind.COMPLETE, job.id, job.fence)
    assert set(settle(queue_connection, worker_id=WORKER, endings=[ending]).written) == {first.id}
    assert ids_of(claim(second_connection, claimant(WORKER + 1), lane=Lane.LANED, limit=10)) == [second.id]


def held_keys(connection: Connection) -> int:
    row = connection.execute(
        """
        SELECT count(*) FROM pg_locks
        WHERE locktype = 'advisory' AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        """
    ).fetchone()
    assert row is not None
    return row[0]


def test_a_pick_that_went_stale_claims_nothing(queue_connection: Connection, second_connection: Connection) -> None:
    """What was picked is decided anew under a later snapshot: the key is busy, the queue paused, the job taken."""
    [first, second] = add_jobs(2, keyed=True, shard_key="a")
    paused = JobFactory(queue="paused", tenanted=True)
    params = {**claimant().params(), "ids": [first.id, second.id, paused.id], "locked": []}
    [running] = claim(second_connection, claimant(WORKER + 1, queues=("default",)), lane=Lane.LANED, limit=1)
    assert running.id == first.id
    QueueFactory(name="paused", paused=True)
    before = snapshot()
    with transaction(queue_connection, timeout_seconds=PATIENCE_SECONDS):
        assert queue_connection.execute(load("claim_picked"), params).fetchall() == []
    assert snapshot() == before


def test_a_job_that_lost_a_lease_keeps_its_key_to_itself(queue_connection: Connection) -> None:
    """The lane for jobs that run alone and the guarded lane share the keys."""
    alone = JobFactory(alone=True, shard_key="a")
    JobFactory(keyed=True, shard_key="a")
    assert ids_of(claim(queue_connection, claimant(), lane=Lane.ALONE, limit=1)) == [alone.id]
    assert claim(queue_connection, claimant(), lane=Lane.LANED, limit=10) == []


# -- rows in front that cannot be claimed ------------------------------------------------------------------


@pytest.fixture
def locked_in_second_session(second_connection: Connection) -> Iterator[Callable[[int], Any]]:
    """A function that locks one job in a transaction that stays open until the test ends."""
    second_connection.autocommit = False
    yield lambda id: second_connection.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [id])
    second_connection.rollback()


def test_a_locked_head_of_one_key_does_not_keep_another_key_waiting(
    queue_connection: Connection, locked_in_second_session: Callable[[int], Any]
) -> None:
    [locked, *_] = add_jobs(3, keyed=True, shard_key="a")
    free = JobFactory(keyed=True, shard_key="b")
    locked_in_second_session(locked.id)
    assert ids_of(claim(queue_connection, claimant(), lane=Lane.LANED, limit=1)) == [free.id]


def test_many_jobs_of_a_locked_key_do_not_keep_another_key_waiting(
    queue_connection: Connection, locked_in_second_session: Callable[[int], Any]
) -> None:
    [locked, *_] = add_jobs(250, keyed=True, shard_key="a")
    free = JobFactory(keyed=True, shard_key="b")
    locked_in_second_session(locked.id)
    assert ids_of(claim(queue_connection, claimant(), lane=Lane.LANED, limit=10)) == [free.id]


def test_a_paused_queue_does_not_keep_another_queue_of_the_guarded_lane_waiting(queue_connection: Connection) -> None:
    QueueFactory(name="paused", paused=True)
    add_jobs(250, queue="paused", priority=5, tenanted=True)
    free = JobFactory(tenanted=True)
    assert ids_of(claim(queue_connection, claimant(), lane=Lane.LANED, limit=10)) == [free.id]


def test_a_refused_key_of_one_queue_is_still_claimed_from_another(
    queue_connection: Connection, locked_in_second_session: Callable[[int], Any]
) -> None:
    locked = JobFactory(queue="left", priority=5, keyed=True, shard_key="a")
    free = JobFactory(queue="right", keyed=True, shard_key="a")
    locked_in_second_session(locked.id)
    assert ids_of(claim(queue_connection, claimant(), lane=Lane.LANED, limit=1)) == [free.id]
