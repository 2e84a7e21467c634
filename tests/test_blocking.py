"""A transaction that has written a completion and never ends: bounded by the server, ended at takeover, or named."""

from __future__ import annotations

from io import StringIO
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection

from pgqueue.models import Job
from pgqueue.protocol.blocking import end_blockers, list_blockers
from pgqueue.protocol.completing import complete_alone
from pgqueue.protocol.connecting import quick_cursor
from pgqueue.protocol.settling import Ending, EndingKind
from pgqueue.sql import load
from pgqueue.takeover import Blockers
from tests.factories import JobFactory, from_now
from tests.inline import row, work
from tests.testapp import effect_tasks, tenant_tasks

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

WORKER = 7
Connection = psycopg.Connection[Any]


def running(**given: Any) -> Job:
    """Return a running job whose lease has run out."""
    return JobFactory(**{"running": True, "worker_id": WORKER, "lease_until": from_now(seconds=-60), **given})


def completion(job: Job, *, result: str | None = None) -> Ending:
    return Ending(EndingKind.COMPLETE, job.id, job.fence, 1.0, result=result)


@pytest.fixture
def body(open_connection: Any) -> Connection:
    """A session of its own, in a transaction, as that of a transactional body."""
    session = open_connection()
    session.autocommit = False
    return session


def complete(session: Connection, job: Job, *, hold_ms: int | None = 60_000, result: str | None = None) -> None:
    assert complete_alone(session, worker_id=WORKER, ending=completion(job, result=result), hold_ms=hold_ms)


def told_by(session: Connection) -> tuple[str, str]:
    found = session.execute(
        "SELECT current_setting('idle_in_transaction_session_timeout'), current_setting('application_name')"
    ).fetchone()
    assert found is not None
    return found


def until_idle_for(seconds: float, session: Connection, other: Connection) -> None:
    """Wait in the server for as long as the session must have idled."""
    other.execute(
        "SELECT pg_sleep(%s - extract(epoch FROM clock_timestamp() - state_change)) FROM pg_stat_activity"
        " WHERE pid = %s",
        [seconds, session.info.backend_pid],
    )


# -- what a completion says of its transaction --------------------------------------------------------------


@pytest.mark.parametrize("given", [{}, {"attempts": 1}])
@pytest.mark.parametrize("result", [None, "7"])
def test_a_completion_bounds_and_names_its_transaction_until_it_ends(
    body: Connection, given: dict[str, Any], result: str | None
) -> None:
    before = told_by(body)
    job = running(**given)
    complete(body, job, hold_ms=2500, result=result)
    assert told_by(body) == ("2500ms", f"pgqueue job={job.id} fence={job.fence}")
    body.commit()
    assert told_by(body) == before


@pytest.mark.parametrize(
    ("own", "then"), [("0", "2500ms"), ("700ms", "700ms"), ("1s", "1s"), ("1min", "2500ms"), ("1d", "2500ms")]
)
def test_a_shorter_bound_of_the_sessions_own_stays(body: Connection, own: str, then: str) -> None:
    body.execute("SELECT set_config('idle_in_transaction_session_timeout', %s, false)", [own])
    complete(body, running(), hold_ms=2500)
    assert told_by(body)[0] == then


def test_a_completion_that_is_its_own_transaction_says_nothing(queue_connection: Connection) -> None:
    before = told_by(queue_connection)
    job = running()
    with queue_connection.transaction():
        assert complete_alone(queue_connection, worker_id=WORKER, ending=completion(job))
        assert told_by(queue_connection) == before


def test_behind_a_pooler_the_session_is_not_named(body: Connection) -> None:
    """A pooler tells a process id of its own making."""
    before = told_by(body)
    job = running()
    owner = {"id": job.id, "fence": job.fence, "worker_id": WORKER}
    held = {"hold_ms": 2500, "backend_pid": body.info.backend_pid + 1}
    assert quick_cursor(body).execute(load("complete_first"), {**owner, **held, "run_seconds": 1.0}).fetchone()
    assert told_by(body) == ("2500ms", before[1])


def test_a_transactional_body_is_bounded_by_what_is_left_of_its_lease() -> None:
    seen: list[Any] = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        answer = execute(sql, params, many, context)
        if "pgqueue.complete" in sql:
            seen.append(told_by(context["connection"].connection))
        return answer

    def body(context: Any) -> None:
        connection.execute_wrappers.append(watch)
        tenant_tasks.tenant_in_force()

    effect_tasks.script["run"] = body
    id = effect_tasks.transactional.enqueue("run").id
    work(lease_seconds=30)
    assert row(id).state == "succeeded"
    ((bound, name),) = seen
    assert 20_000 < int(bound.removesuffix("ms").removesuffix("s")) * (1 if bound.endswith("ms") else 1000) <= 30_000
    assert name.startswith(f"pgqueue job={id} fence=")


def test_the_server_ends_a_session_that_idles_after_its_completion(
    body: Connection, queue_connection: Connection
) -> None:
    job = running()
    pid = body.info.backend_pid
    complete(body, job, hold_ms=100)
    until_gone(queue_connection, pid)
    assert row(job.id).state == "running"
    with pytest.raises(psycopg.errors.IdleInTransactionSessionTimeout):
        body.execute("SELECT 1")


def until_gone(connection: Connection, pid: int) -> None:
    for _ in range(1000):
        if connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone() is None:
            return
        connection.execute("SELECT pg_sleep(0.01)")
    raise AssertionError("the session is still there")


# -- at takeover -------------------------------------------------------------------------------------------


def test_a_session_that_idles_after_its_completion_is_ended_at_takeover(
    body: Connection, queue_connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    job = running()
    pid = body.info.backend_pid
    complete(body, job)
    until_idle_for(1.1, body, queue_connection)
    Blockers().deal(queue_connection)
    until_gone(queue_connection, pid)
    assert [record.getMessage() for record in caplog.records] == [
        f"takeover.freed job={job.id} fence={job.fence} pid={pid}"
    ]
    assert row(job.id).state == "running"


def test_one_whose_commit_may_be_on_its_way_is_left(body: Connection, queue_connection: Connection) -> None:
    complete(body, running())
    (found,) = end_blockers(queue_connection)
    assert (found.pid, found.ended) == (body.info.backend_pid, False)
    body.commit()


@pytest.mark.parametrize(
    "holds",
    [
        pytest.param("SELECT 1 FROM pgqueue_job WHERE id = %s FOR UPDATE", id="a lock"),
        pytest.param("UPDATE pgqueue_job SET priority = 1 WHERE id = %s", id="a change"),
    ],
)
def test_any_other_session_is_named_and_left(
    body: Connection, queue_connection: Connection, caplog: pytest.LogCaptureFixture, holds: str
) -> None:
    job = running()
    body.execute(holds, [job.id])
    until_idle_for(1.1, body, queue_connection)
    blockers = Blockers()
    for _ in range(3):
        blockers.deal(queue_connection)
    pid, role = body.info.backend_pid, body.info.user
    assert [record.getMessage() for record in caplog.records] == [
        f"takeover.blocked job={job.id} fence={job.fence} pid={pid} role={role} state=idle in transaction"
    ]
    body.execute("SELECT 1")


def test_nobody_is_alarmed_by_a_worker_that_just_takes_the_job_over(
    body: Connection, queue_connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    job = running(lease_until=from_now(seconds=-1))
    body.execute("SELECT 1 FROM pgqueue_job WHERE id = %s FOR UPDATE", [job.id])
    assert [found.pid for found in end_blockers(queue_connection)] == [body.info.backend_pid]
    Blockers().deal(queue_connection)
    assert caplog.records == []


def test_a_session_named_after_another_job_or_fence_is_left(body: Connection, queue_connection: Connection) -> None:
    job, other = running(), running()
    complete(body, job)
    body.execute("SELECT 1 FROM pgqueue_job WHERE id = %s FOR UPDATE", [other.id])
    until_idle_for(1.1, body, queue_connection)
    body.execute("SELECT set_config('application_name', %s, true)", [f"pgqueue job={job.id} fence={job.fence + 1}"])
    until_idle_for(1.1, body, queue_connection)
    assert [(found.job_id, found.ended) for found in end_blockers(queue_connection)] == [
        (job.id, False),
        (other.id, False),
    ]


def test_a_job_whose_lease_lasts_is_left(body: Connection, queue_connection: Connection) -> None:
    complete(body, running(lease_until=from_now(seconds=60)))
    until_idle_for(1.1, body, queue_connection)
    assert end_blockers(queue_connection) == []


def test_a_role_that_may_not_end_it_names_it(body: Connection, queue_connection: Connection) -> None:
    job = running()
    complete(body, job)
    until_idle_for(1.1, body, queue_connection)
    queue_connection.execute(
        "DO $$ BEGIN CREATE ROLE pgqueue_modest; EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
        "GRANT SELECT ON pgqueue_job TO pgqueue_modest; SET ROLE pgqueue_modest"
    )
    try:
        (found,) = end_blockers(queue_connection)
    finally:
        queue_connection.execute("RESET ROLE; DROP OWNED BY pgqueue_modest; DROP ROLE pgqueue_modest")
    assert (found.job_id, found.pid, found.state, found.ended) == (job.id, body.info.backend_pid, None, False)


# -- for people --------------------------------------------------------------------------------------------


def test_people_are_told_who_holds_the_row(body: Connection) -> None:
    job = running()
    body.execute("SELECT 1 FROM pgqueue_job WHERE id = %s FOR UPDATE", [job.id])
    (found,) = list_blockers("default")
    assert (found.job_id, found.pid, found.ended) == (job.id, body.info.backend_pid, False)
    told = StringIO()
    call_command("pgqueue_status", stdout=told)
    assert f"Job {job.id} cannot be taken over: session {found.pid} of role {body.info.user}" in told.getvalue()
    assert f"SELECT pg_terminate_backend({found.pid})" in told.getvalue()
    body.rollback()
    assert list_blockers("default") == []


def test_a_lease_that_has_just_run_out_is_nobodys_business(body: Connection) -> None:
    job = running(lease_until=from_now(seconds=-1))
    body.execute("SELECT 1 FROM pgqueue_job WHERE id = %s FOR UPDATE", [job.id])
    assert list_blockers("default") == []
