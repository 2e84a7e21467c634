"""Limits and rates under two sessions: one stopped between its claim and its commit, the other seen to pass by."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from pgqueue.models import Job
from pgqueue.operations import Actor, act
from pgqueue.protocol import claiming
from pgqueue.protocol.claiming import Turn, claim
from pgqueue.states import Lane, State
from tests.factories import TASK, JobFactory, LimitFactory
from tests.mutants.mutating import loaded
from tests.races.rows import WORKER, add_jobs, claimant
from tests.statements.doing import NEW_ROUND, load

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

Connection = psycopg.Connection[Any]
ADA = Actor(id="1", name="ada")
BOUND: dict[str, dict[str, Any]] = {
    "tenant:acme": {"tenanted": True},
    "resource:printer": {"using": True},
    "queue:default": {},
    f"task:{TASK}": {},
}
BOUNDS: dict[str, dict[str, Any]] = {
    "limit": {"max_running": 2},
    "rate": {"rate_per_second": 1e-6, "burst": 2, "tokens": 2.0},
}


def guarded(connection: Connection, shape: dict[str, Any], *, limit: int, turn: Turn | None = None) -> list[int]:
    lane = Lane.LANED if shape else Lane.BOUND
    return [lease.id for lease in claim(connection, claimant(), lane=lane, limit=limit, turn=turn)]


def row_locks(connection: Connection, holder: Connection) -> int:
    """Count the locks that a session holds on the table of limits: one of a row shows on its table."""
    row = connection.execute(
        "SELECT count(*) FROM pg_locks WHERE pid = %s AND relation = 'pgqueue_limit'::regclass AND granted"
        " AND mode IN ('RowShareLock', 'RowExclusiveLock')",
        [holder.info.backend_pid],
    ).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.case("D01")
@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
@pytest.mark.parametrize(("limit", "shape"), BOUND.items(), ids=BOUND)
def test_a_session_between_lock_and_commit_keeps_the_others_out_and_nobody_waits(
    queue_connection: Connection,
    second_connection: Connection,
    watching_connection: Connection,
    limit: str,
    shape: dict[str, Any],
    bounds: dict[str, Any],
) -> None:
    dated = {"refilled_at": "2000-01-01T00:00Z"} if "burst" in bounds else {}
    LimitFactory(id=limit, **bounds, **dated)
    ids = [job.id for job in add_jobs(4, **shape)]
    turn = Turn()
    with queue_connection.transaction():
        assert guarded(queue_connection, shape, limit=1) == ids[:1]
        assert row_locks(watching_connection, queue_connection) > 0
        JobFactory(**shape, priority=9)
        # Session 2 tries the lock of the limit, does not get it, and neither waits nor claims; it will ask again.
        assert guarded(second_connection, shape, limit=4, turn=turn) == []
        assert turn.more_in_seconds is not None
    assert len(guarded(second_connection, shape, limit=4, turn=turn)) == 1
    assert guarded(queue_connection, shape, limit=4) == []
    assert Job.objects.filter(state=State.RUNNING).count() == 2


def test_an_operators_change_is_not_decided_by_half(
    queue_connection: Connection, second_connection: Connection
) -> None:
    """A claim that has picked finds the limit locked by it, and the operator waits; the next claim knows it."""
    LimitFactory(id="tenant:acme", max_running=5)
    jobs = add_jobs(3, tenanted=True)
    params = {**claimant().params(), **NEW_ROUND, "limit": 1, "worker_id": WORKER}
    with queue_connection.transaction():
        queue_connection.execute(load("pick_laned"), params)
        second_connection.execute("SET lock_timeout = '50ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            second_connection.execute(load("lock_limit"), {"id": "tenant:acme"})
        claimed = queue_connection.execute(
            load("claim_picked"), {**params, "ids": [jobs[0].id], "locked": ["tenant:acme"]}
        )
        assert len(claimed.fetchall()) == 1
    act("set_limit", "tenant:acme", version_seen=1, actor=ADA, reason="why", params={"max_running": 1})
    assert guarded(queue_connection, {"tenanted": True}, limit=3) == []


def test_a_pause_holds_for_every_claim_begun_after_its_commit(queue_connection: Connection) -> None:
    add_jobs(3, tenanted=True)
    assert len(guarded(queue_connection, {"tenanted": True}, limit=1)) == 1
    act("pause_jobs", "tenant:acme", version_seen=0, actor=ADA, reason="why")
    assert guarded(queue_connection, {"tenanted": True}, limit=3) == []
    act("resume_jobs", "tenant:acme", version_seen=1, actor=ADA, reason="why")
    assert len(guarded(queue_connection, {"tenanted": True}, limit=3)) == 2


def test_a_pick_that_another_session_overtook_is_judged_by_what_that_one_committed(
    queue_connection: Connection, second_connection: Connection
) -> None:
    """The limit is new: session 1 picked without a lock of it, and may not count by it."""
    jobs = add_jobs(3, tenanted=True)
    params = {**claimant().params(), **NEW_ROUND, "limit": 3}
    with queue_connection.transaction():
        picked = queue_connection.execute(load("pick_laned"), params).fetchall()
        ids, locked = [row[0] for row in picked[1:] if row[2]], [name for row in picked[1:] for name in row[4]]
        assert (ids, locked) == ([job.id for job in jobs], [])
        LimitFactory(id="tenant:acme", max_running=1)
        assert len(guarded(second_connection, {"tenanted": True}, limit=3)) == 1
        claimed = queue_connection.execute(load("claim_picked"), {**params, "ids": ids, "locked": locked})
        assert claimed.fetchall() == []


def test_a_limit_that_another_session_is_counting_keeps_no_other_tenant_waiting(
    queue_connection: Connection, second_connection: Connection
) -> None:
    """Its jobs stand in front, more than the claim looks at: they are left with their limit, not one by one."""
    LimitFactory(id="tenant:acme", max_running=100)
    add_jobs(100, tenanted=True, priority=9)
    free = JobFactory(tenanted=True, tenant="other")
    with queue_connection.transaction():
        assert len(guarded(queue_connection, {"tenanted": True}, limit=1)) == 1
        assert guarded(second_connection, {"tenanted": True}, limit=2) == [free.id]


# -- what decides is read after the lock -------------------------------------------------------------------

OTHER_TASK = "tests.testapp.tasks.multiply"
APART: dict[str, dict[str, Any]] = {
    "tenant:acme": {"tenanted": True, "queue": "other"},
    "resource:printer": {"using": True, "queue": "other"},
    "queue:default": {"task": OTHER_TASK},
    f"task:{TASK}": {"queue": "other"},
    "key": {"keyed": True, "task": OTHER_TASK},
}
"""By limit, or by the key that both share: what tells the job of session 2 from the one of session 1."""
GATE = 7


def overtaken(
    sessions: tuple[Connection, Connection],
    in_background: Callable[..., Future[list[int]]],
    wait_until_blocking: Callable[[Connection], None],
    limit: str,
) -> None:
    """Session 1 picks, and stops between its snapshot and its locks; session 2 takes the only slot and commits."""
    (first, second), apart = sessions, APART[limit]
    lane = Lane.BOUND if limit.startswith(("queue", "task")) else Lane.LANED
    if limit != "key":
        LimitFactory(id=limit, max_running=1)
    JobFactory(**{**apart, "queue": "default", "task": TASK})
    job = JobFactory(**apart)
    mine, theirs = (
        claimant(queues=("default",), tasks=(TASK,)),
        claimant(WORKER + 1, queues=(job.queue,), tasks=(job.task,)),
    )
    where = "WHERE placed.id NOT IN"
    gated = {
        name: load(name).replace(where, f"WHERE pg_advisory_xact_lock_shared({GATE}) IS NOT NULL AND placed.id NOT IN")
        for name in ("pick_laned", "pick_bound")
    }
    assert all("pg_advisory_xact_lock_shared" in text for text in gated.values())
    with loaded(gated):
        with second.transaction():
            second.execute("SELECT pg_advisory_xact_lock(%s)", [GATE])
            claimed = in_background(claim, first, mine, lane=lane, limit=1)
            wait_until_blocking(second)
            assert [lease.id for lease in claim(second, theirs, lane=lane, limit=1)] == [job.id]
        assert claimed.result() == []
    assert Job.objects.filter(state=State.RUNNING).count() == 1


@pytest.mark.parametrize("limit", APART)
def test_a_claim_that_was_overtaken_before_it_had_the_lock_decides_by_what_the_other_committed(
    queue_connection: Connection,
    second_connection: Connection,
    in_background: Callable[..., Future[list[int]]],
    wait_until_blocking: Callable[[Connection], None],
    limit: str,
) -> None:
    overtaken((queue_connection, second_connection), in_background, wait_until_blocking, limit)


@pytest.mark.parametrize("limit", [limit for limit in APART if limit != "key"])
def test_a_claim_that_counts_by_the_snapshot_of_its_pick_exceeds_the_limit(
    queue_connection: Connection,
    second_connection: Connection,
    in_background: Callable[..., Future[list[int]]],
    wait_until_blocking: Callable[[Connection], None],
    limit: str,
) -> None:
    """The wrong way, for the test above to notice: one snapshot for both halves."""
    queue_connection.isolation_level = IsolationLevel.REPEATABLE_READ
    with pytest.raises(AssertionError):
        overtaken((queue_connection, second_connection), in_background, wait_until_blocking, limit)
    assert Job.objects.filter(state=State.RUNNING).count() == 2


def test_a_claim_that_looks_for_its_key_by_the_snapshot_of_its_pick_is_stopped_by_the_index(
    queue_connection: Connection,
    second_connection: Connection,
    in_background: Callable[..., Future[list[int]]],
    wait_until_blocking: Callable[[Connection], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last line: it costs that one claim."""
    queue_connection.isolation_level = IsolationLevel.REPEATABLE_READ
    refused: list[str] = []
    take = claiming._take

    def watched(*args: Any) -> list[Any]:
        try:
            return take(*args)
        except psycopg.errors.UniqueViolation as error:
            refused.append(str(error.diag.constraint_name))
            raise

    monkeypatch.setattr(claiming, "_take", watched)
    overtaken((queue_connection, second_connection), in_background, wait_until_blocking, "key")
    assert refused == ["pgqueue_job_one_per_key"]
