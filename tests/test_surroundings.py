"""A task finds its thread and its connections as if no task had run there before, whatever that one left."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection, connections
from django.test import override_settings
from django.utils import timezone

from pgqueue import enqueue_many
from pgqueue.compat import task_finished
from pgqueue.models import Attempt, Job, Queue
from pgqueue.protocol import cleaning, connecting
from pgqueue.protocol.connecting import connect, one_trip, transaction
from pgqueue.sql import load
from tests.inline import row, work, work_through_retries, work_together
from tests.testapp import contract_tasks
from tests.testapp.contract_tasks import MISDEEDS, look_around, misbehave, tell_session

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

KEEPINGS: dict[str, dict[str, Any]] = {
    "closed after each task": {"CONN_MAX_AGE": 0},
    "kept for a minute": {"CONN_MAX_AGE": 60},
    "kept for ever": {"CONN_MAX_AGE": None},
    "kept and checked": {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True},
    "pooled": {"pool": {"min_size": 1, "max_size": 4, "timeout": 10}},
}
KEPT = [name for name in KEEPINGS if name != "closed after each task"]


@pytest.fixture
def configure(transactional_db: None) -> Iterator[Any]:
    """A function that changes settings of the default database for every connection made from now on."""
    database = connections.settings["default"]
    before = {**database, "OPTIONS": dict(database["OPTIONS"])}

    def change(*, pool: Any = None, options: dict[str, Any] | None = None, **settings: Any) -> None:
        if pool is not None:
            pytest.importorskip("psycopg_pool")
        connection.close()
        database.update(settings)
        database["OPTIONS"] = {**before["OPTIONS"], **(options or {}), **({} if pool is None else {"pool": pool})}
        _forget_time_zone()

    yield change
    connection.close()
    connection.close_pool()
    database.clear()
    database.update(before)
    _forget_time_zone()


def _forget_time_zone() -> None:
    for cached in ("timezone", "timezone_name"):
        connections["default"].__dict__.pop(cached, None)


def _values(*results: Any) -> list[Any]:
    for result in results:
        result.refresh()
        assert result.is_finished, (row(result.id).state, row(result.id).last_error)
    return [result.return_value for result in results]


def _in_turn(*calls: Any) -> list[Any]:
    """Enqueue calls so that one worker thread runs them in this order."""
    return [call.task.using(priority=-place).enqueue(*call.args) for place, call in enumerate(calls)]


@pytest.mark.case("J09")
@pytest.mark.parametrize("keeping", KEEPINGS)
def test_the_next_task_sees_nothing_of_what_a_task_left(configure: Any, keeping: str) -> None:
    configure(**KEEPINGS[keeping])
    calls = [call for misdeed in MISDEEDS for call in (misbehave.bind(misdeed), look_around.bind())]
    first, *rest = _in_turn(look_around.bind(), *calls)
    assert work(concurrency=1) == 0
    (before,) = _values(first)
    for misdeed, left, after in zip(MISDEEDS, rest[::2], rest[1::2], strict=True):
        assert row(left.id).state == "succeeded", (misdeed, row(left.id).last_error)
        assert _values(after) == [before], misdeed
    assert "hook ran" not in contract_tasks.left_open


@pytest.mark.case("J10")
@pytest.mark.parametrize("keeping", KEEPINGS)
def test_a_task_that_leaves_a_mess_and_fails_is_recorded_with_its_own_error(configure: Any, keeping: str) -> None:
    configure(**KEEPINGS[keeping])
    misbehave_and_fail = contract_tasks.misbehave_and_fail
    calls = [call for misdeed in MISDEEDS for call in (misbehave_and_fail.bind(misdeed), look_around.bind())]
    first, *rest = _in_turn(look_around.bind(), *calls)
    assert work(concurrency=1) == 0
    (before,) = _values(first)
    for misdeed, failed, after in zip(MISDEEDS, rest[::2], rest[1::2], strict=True):
        job = row(failed.id)
        assert (job.state, job.last_error) == ("retrying", "the author's own error"), misdeed
        assert _values(after) == [before], misdeed


@pytest.mark.parametrize("keeping", KEPT)
def test_a_connection_that_a_task_did_not_use_is_left_as_it_is(
    configure: Any, keeping: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(**KEEPINGS[keeping])
    loaded: list[str] = []
    monkeypatch.setattr(cleaning, "load", lambda name: loaded.append(name) or load(name))
    results = _in_turn(look_around.bind(), *[contract_tasks.nothing.bind()] * 3, look_around.bind())
    assert work(concurrency=1) == 0
    before, *_, after = _values(*results)
    assert (before, loaded) == (after, ["discard_session"] * 2)


@pytest.mark.case("J10")
def test_a_database_error_in_a_block_is_recorded_as_itself() -> None:
    result = contract_tasks.insert_queue_and_divide.enqueue("q")
    assert work() == 0
    job = row(result.id)
    assert (job.state, job.last_error_class) == ("dead", "django.db.utils.DataError")
    assert "division by zero" in job.last_error
    assert Attempt.objects.get().failure_class == "content"
    assert not Queue.objects.filter(name="q").exists()


def test_what_a_failed_task_wrote_in_a_block_is_rolled_back() -> None:
    contract_tasks.insert_queue_and_fail.enqueue("q")
    assert work() == 0
    assert not Queue.objects.filter(name="q").exists()


@pytest.mark.parametrize("keeping", KEPT)
def test_a_connection_that_django_keeps_is_kept(configure: Any, keeping: str) -> None:
    configure(**KEEPINGS[keeping])
    results = _in_turn(*[tell_session.bind()] * 3)
    assert work(concurrency=1) == 0
    assert len(set(_values(*results))) == 1


def test_a_connection_that_django_closes_is_closed(configure: Any) -> None:
    configure(CONN_MAX_AGE=0)
    results = _in_turn(*[tell_session.bind()] * 3)
    assert work(concurrency=1) == 0
    assert len(set(_values(*results))) == 3


def test_prepared_statements_survive_the_cleaning(configure: Any) -> None:
    configure(CONN_MAX_AGE=None, options={"prepare_threshold": 0})
    results = _in_turn(*[look_around.bind()] * 4)
    assert work(concurrency=1) == 0
    assert len({str(value) for value in _values(*results)}) == 1


@pytest.mark.parametrize("keeping", KEPT)
def test_a_time_zone_of_the_settings_is_there_for_every_task(configure: Any, keeping: str) -> None:
    configure(**KEEPINGS[keeping], TIME_ZONE="America/New_York")
    results = _in_turn(look_around.bind(), misbehave.bind("time_zone"), look_around.bind(), look_around.bind())
    assert work(concurrency=1) == 0
    assert [value["time_zone"] for value in _values(results[0], *results[2:])] == ["America/New_York"] * 3


# Not pooled: there Django itself waits for the pool while it sets the role of the pool's first connection.
@pytest.mark.parametrize("keeping", [name for name in KEPT if name != "pooled"])
def test_a_role_of_the_settings_is_there_for_every_task(configure: Any, keeping: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_user::text")
        (user,) = cursor.fetchone()
    configure(**KEEPINGS[keeping], options={"assume_role": user})
    results = _in_turn(look_around.bind(), misbehave.bind("role"), look_around.bind(), look_around.bind())
    assert work(concurrency=1) == 0
    assert [value["role"] for value in _values(results[0], *results[2:])] == [user] * 3


def test_a_notice_leaves_nothing_for_the_task_after_it() -> None:
    """Receivers of `task_finished` run on the same threads."""
    results = _in_turn(*[look_around.bind()] * 3)

    def misbehave_there(**kwargs: Any) -> None:
        for misdeed in ("role", "language", "open_block"):
            MISDEEDS[misdeed]()

    task_finished.connect(misbehave_there)
    try:
        assert work(concurrency=1) == 0
        more = _in_turn(look_around.bind())
        assert work(concurrency=1) == 0
    finally:
        task_finished.disconnect(misbehave_there)
    assert len({str(value) for value in _values(*results, *more)}) == 1


# -- how many connections ----------------------------------------------------------------------------------


def _database_name() -> str:
    return connection.settings_dict["NAME"]


def _sessions(watching: psycopg.Connection[Any]) -> int:
    row = watching.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()").fetchone()
    assert row is not None
    return row[0]


@pytest.mark.case("J07")
@pytest.mark.parametrize("keeping", ["closed after each task", "kept for ever"])
def test_a_worker_uses_one_connection_a_thread_and_three_of_its_own(
    configure: Any, keeping: str, queue_connection: psycopg.Connection[Any]
) -> None:
    configure(**KEEPINGS[keeping])
    before = _sessions(queue_connection)
    ids = enqueue_many([contract_tasks.count_sessions.bind(_database_name())] * 200)
    assert work(concurrency=20) == 0
    most = max(_values(*[contract_tasks.count_sessions.get_result(str(id)) for id in ids]))
    # Sessions end a moment after they are closed here.
    assert most <= before + 1 + 2 * 20 + 3 if keeping == "closed after each task" else most <= before + 1 + 20 + 3
    connection.close()
    _wait_until(lambda: _sessions(queue_connection) <= before)


def _wait_until(is_so: Any) -> None:
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.case("J15")
def test_a_pool_smaller_than_the_threads_delays_tasks_and_no_heartbeat(configure: Any) -> None:
    configure(pool={"min_size": 1, "max_size": 2, "timeout": 30})
    ids = enqueue_many([contract_tasks.hold_connection.bind(0.1)] * 40)
    assert work(concurrency=8, lease_seconds=3) == 0
    jobs = [row(id) for id in ids]
    assert {(job.state, job.attempts, job.lease_losses) for job in jobs} == {("succeeded", 1, 0)}


# -- async -------------------------------------------------------------------------------------------------


@pytest.mark.case("J16")
def test_the_orm_works_from_sync_and_async_tasks() -> None:
    results = [
        contract_tasks.count_jobs.enqueue(),
        contract_tasks.count_jobs_through_a_thread.enqueue(),
        contract_tasks.count_jobs_natively.enqueue(),
        contract_tasks.session_of_async_orm.enqueue(),
    ]
    assert work() == 0
    assert _values(*results) == [4, 4, 4, True]


@pytest.mark.case("J18")
def test_a_task_that_blocks_its_event_loop_keeps_its_lease() -> None:
    result = contract_tasks.block_the_loop.enqueue(4)
    assert work(lease_seconds=1.2) == 0
    job = row(result.id)
    assert (job.state, job.attempts, job.lease_losses, job.version) == ("succeeded", 1, 0, 3)


# -- memory ------------------------------------------------------------------------------------------------


def _resident_kilobytes() -> int:
    gc.collect()
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1])


@pytest.mark.case("J19")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory from /proc")
@override_settings(DEBUG=True)
def test_memory_does_not_grow_with_the_number_of_jobs(configure: Any) -> None:
    """With DEBUG Django keeps up to 9,000 queries a connection, and ours lives for ever."""
    configure(CONN_MAX_AGE=None)

    def run(jobs: int) -> None:
        enqueue_many([contract_tasks.count_jobs.bind()] * jobs)
        assert work(concurrency=2) == 0

    run(500)
    before = _resident_kilobytes()
    run(1_500)
    assert _resident_kilobytes() - before < 5 * 1024
    last = look_around.enqueue()
    assert work() == 0
    assert _values(last)[0]["queries"] == 0


# -- isolation ---------------------------------------------------------------------------------------------


@pytest.fixture
def serializable(queue_connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Sessions that begin from now on are serializable, unless they say otherwise."""
    quoted = connection.ops.quote_name
    scope = f"ALTER ROLE {quoted(queue_connection.info.user)} IN DATABASE {quoted(_database_name())}"
    connection.close()
    queue_connection.execute(f"{scope} SET default_transaction_isolation = 'serializable'")
    yield
    connection.close()
    queue_connection.execute(f"{scope} RESET default_transaction_isolation")


@pytest.mark.case("J21")
def test_a_serializable_default_costs_no_job_and_no_worker(
    serializable: None, caplog: pytest.LogCaptureFixture
) -> None:
    contract_tasks.recorded.clear()
    enqueue_many(contract_tasks.record.bind(number) for number in range(1_000))
    probe = look_around.enqueue()
    assert work_together(4) == [0] * 4
    assert sorted(contract_tasks.recorded) == list(range(1_000))
    assert _values(probe)[0]["isolation"] == "serializable"
    states = Job.objects.values_list("state", "attempts", "lease_losses").distinct()
    assert set(states) == {("succeeded", 1, 0)}
    assert [record.getMessage() for record in caplog.records if record.name.startswith("pgqueue")] == []


@pytest.mark.case("J21")
@pytest.mark.parametrize("is_direct", [True, False], ids=["direct", "behind a pooler"])
def test_a_round_trip_of_ours_reads_committed_whatever_the_default(
    serializable: None, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "is_direct", lambda connection: is_direct)
    with connect("default", role="tests") as ours:
        asked = ours.execute("SELECT current_setting('default_transaction_isolation')")
        assert asked.fetchone() == ("read committed" if is_direct else "serializable",)
        with one_trip(ours, timeout_seconds=5):
            asked = ours.execute("SELECT current_setting('transaction_isolation')")
        assert asked.fetchone() == ("read committed",)


@pytest.mark.case("J21")
def test_a_serializable_default_keeps_operation_keys_and_retries(serializable: None) -> None:
    keyed = contract_tasks.double.using(operation_key="k")
    assert keyed.enqueue(1).id == keyed.enqueue(1).id
    contract_tasks.fail_three_times.enqueue()
    contract_tasks.nothing.using(shard_key="s").enqueue()
    work_through_retries()
    assert sorted(Job.objects.values_list("state", flat=True)) == ["dead", "succeeded", "succeeded"]


def test_the_django_time_zone_of_a_test_is_its_own() -> None:
    """A guard for the tests above: what they activate must not leak from their threads into this one."""
    assert timezone.get_current_timezone_name() == "UTC"


@pytest.mark.parametrize("seconds", [5, 3])
@pytest.mark.parametrize("guarded", [None, 5])
@pytest.mark.parametrize("is_single", [False, True])
def test_whatever_guards_its_connection_a_transaction_has_the_bound_that_was_asked_for(
    guarded: float | None, seconds: float, is_single: bool
) -> None:
    shown = "SELECT current_setting('statement_timeout'), current_setting('plan_cache_mode')"
    with connect("default", role="tests", timeout_seconds=guarded) as ours:
        with one_trip(ours, timeout_seconds=seconds, is_single=is_single):
            in_trip = ours.execute(shown)
        assert in_trip.fetchone() == (f"{seconds}s", "force_generic_plan")
        with transaction(ours, timeout_seconds=seconds):
            assert ours.execute(shown).fetchone() == (f"{seconds}s", "force_generic_plan")
        after = ("0", "auto") if guarded is None else (f"{guarded}s", "force_generic_plan")
        assert ours.execute(shown).fetchone() == after
