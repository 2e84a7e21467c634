"""What a worker does beside its jobs fails for itself: no worker starts later, claims later or ends because of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection as django

from pgqueue import enqueue_many
from pgqueue.models import Job, Limit, MinuteStat, Queue, Worker
from pgqueue.models.keys import Window
from pgqueue.protocol import upkeep as protocol
from pgqueue.protocol.upkeep import declare_limits, prune_old
from pgqueue.worker import upkeep as upkeeping
from pgqueue.worker.tally import Tally
from pgqueue.worker.upkeep import Upkeep
from tests.factories import LimitFactory, MinuteStatFactory, WorkerFactory, from_now
from tests.inline import work
from tests.test_tally import counted
from tests.testapp.contract_tasks import double

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
WEEK = 7 * 86_400.0


def windows(count: int, *, ended_seconds_ago: float, prefix: str = "old") -> None:
    with django.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_window (job_id, created_at, ends_at, task, key)"
            " SELECT n, now(), now() - make_interval(secs => %s), 't', %s || n FROM generate_series(1, %s) AS n",
            [ended_seconds_ago, prefix, count],
        )


def upkeep_of(*, tally: Tally | None = None, **given: Any) -> Upkeep:
    usual = {"alias": "default", "worker_id": 1, "limits": None, "retention_seconds": WEEK}
    return Upkeep(tally=tally or Tally(), **{**usual, **given})


@contextmanager
def raising_on(table: str, moment: str) -> Iterator[None]:
    """A site's trigger that refuses whatever is written to a table."""
    with django.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION test_raise() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'not on this site'; END $$"
        )
        cursor.execute(
            f"CREATE TRIGGER test_raise BEFORE {moment} ON {table} FOR EACH ROW EXECUTE FUNCTION test_raise()"
        )
    try:
        yield
    finally:
        with django.cursor() as cursor:
            cursor.execute("DROP FUNCTION test_raise CASCADE")


# pruning


def test_what_is_old_goes_in_batches_and_what_is_young_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeeping, "BATCH", 3)
    windows(7, ended_seconds_ago=WEEK + 60)
    windows(2, ended_seconds_ago=60, prefix="young")
    gone, kept = WorkerFactory(heartbeat_at=from_now(-WEEK - 60)), WorkerFactory(heartbeat_at=from_now(-60))
    MinuteStatFactory(minute=from_now(-9 * 86_400), task="old")
    MinuteStatFactory(minute=from_now(-7 * 86_400), task="young")
    each = upkeep_of()
    each._round()
    assert all(sweep.is_over for sweep in each._sweeps)
    assert set(Window.objects.values_list("key", flat=True)) == {"young1", "young2"}
    assert list(Worker.objects.all()) == [kept]
    assert gone.pk != kept.pk
    assert [stat.task for stat in MinuteStat.objects.all()] == ["young"]


@pytest.mark.parametrize("table", ["pgqueue_worker", "pgqueue_window", "pgqueue_minutestat"])
def test_a_row_that_somebody_holds_is_passed_over(table: str, open_connection: Callable[[], Any]) -> None:
    windows(2, ended_seconds_ago=WEEK + 60)
    for number in range(2):
        WorkerFactory(heartbeat_at=from_now(-WEEK - 60))
        MinuteStatFactory(minute=from_now(-9 * 86_400), task=f"old{number}")
    other = open_connection()
    other.autocommit = False
    held = other.execute(f"SELECT id FROM {table} ORDER BY id LIMIT 1 FOR UPDATE").fetchone()
    upkeep_of()._round()
    rows = other.execute(f"SELECT id FROM {table}").fetchall()
    assert rows == [held]


def test_one_part_that_fails_leaves_the_others_to_be_done(caplog: pytest.LogCaptureFixture) -> None:
    windows(2, ended_seconds_ago=WEEK + 60)
    WorkerFactory(heartbeat_at=from_now(-WEEK - 60))
    tally = Tally()
    counted(tally)
    each = upkeep_of(tally=tally)
    each.add_queues({"mail"})
    with raising_on("pgqueue_worker", "DELETE"):
        each._round()
    assert Worker.objects.count() == 1
    assert not Window.objects.exists()
    assert Queue.objects.filter(name="mail").exists()
    assert MinuteStat.objects.get().jobs == 1
    assert "upkeep.failed worker=1 part=prune_workers failures=1 error=RaiseException sqlstate=P0001" in caplog.text


def test_a_batch_that_failed_is_smaller_the_next_time() -> None:
    WorkerFactory(heartbeat_at=from_now(-WEEK - 60))
    each = upkeep_of()
    with raising_on("pgqueue_worker", "DELETE"):
        each._round()
    assert each._sweeps[0].limit == upkeeping.BATCH // 10
    each._sweep_at = 0.0
    each._round()
    assert not Worker.objects.exists()


def test_a_sweep_of_many_rows_is_left_and_taken_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeeping, "SLICE_SECONDS", -1.0)
    windows(3, ended_seconds_ago=WEEK + 60)
    each = upkeep_of()
    each._round()
    assert Window.objects.count() == 3
    assert each._is_sweeping()
    monkeypatch.setattr(upkeeping, "SLICE_SECONDS", 60.0)
    each._round()
    assert not Window.objects.exists()
    assert not each._is_sweeping()


def test_a_batch_looks_at_so_many_rows_and_no_more(queue_connection: Any) -> None:
    windows(2, ended_seconds_ago=60, prefix="young")
    windows(2, ended_seconds_ago=WEEK + 60)
    first = prune_old(queue_connection, "prune_windows", after_id=0, retention_seconds=WEEK, limit=3)
    assert not first.is_over
    assert Window.objects.filter(key__startswith="old").count() == 1
    second = prune_old(queue_connection, "prune_windows", after_id=first.last_id, retention_seconds=WEEK, limit=3)
    assert second.is_over
    assert not Window.objects.filter(key__startswith="old").exists()


def test_a_round_with_nothing_to_do_makes_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    each = upkeep_of()
    each._round()
    monkeypatch.setattr(upkeeping, "connect", lambda alias, role: pytest.fail("connected"))
    each._round()


# naming queues


def test_a_queue_that_cannot_be_named_is_named_later(caplog: pytest.LogCaptureFixture) -> None:
    enqueue_many([double.bind(1)])
    each = upkeep_of()
    with raising_on("pgqueue_queue", "INSERT"):
        assert work() == 0
        each.add_queues({"mail"})
        each._round()
    assert Job.objects.get().state == "succeeded"
    assert not Queue.objects.exists()
    assert "part=queues" in caplog.text
    each._round()
    assert [queue.name for queue in Queue.objects.all()] == ["mail"]


# figures


def test_figures_that_cannot_be_written_are_kept_told_and_written_later(caplog: pytest.LogCaptureFixture) -> None:
    tally = Tally()
    each = upkeep_of(tally=tally)
    with raising_on("pgqueue_minutestat", "INSERT"):
        for _ in range(5):
            counted(tally)
            each._round()
    assert not MinuteStat.objects.exists()
    assert caplog.text.count("part=figures") == 3  # The first time, the second and the fourth.
    each._round()
    assert MinuteStat.objects.get().jobs == 5


# limits of the settings


def test_a_worker_starts_with_its_limits_declared(settings: Any) -> None:
    settings.PGQUEUE = {"LIMITS": {"queue:mail": {"max_running": 2}}}
    work()
    assert Limit.objects.get().max_running == 2


def test_limits_that_stand_as_declared_wait_for_nobody(
    queue_connection: Any, open_connection: Callable[[], Any]
) -> None:
    limits = {"queue:mail": {"max_running": 2}, "tenant:acme": {"rate_per_second": 0.1, "burst": 3}}
    declare_limits(queue_connection, limits)
    LimitFactory(id="queue:other", version=1, max_running=1)
    other = open_connection()
    other.autocommit = False
    other.execute("SELECT FROM pgqueue_limit FOR UPDATE")
    declare_limits(queue_connection, {**limits, "queue:other": {"max_running": 9}})
    assert Limit.objects.get(id="queue:other").max_running == 1


def test_a_locked_limit_keeps_no_other_from_being_declared_and_no_worker_from_starting(
    settings: Any,
    open_connection: Callable[[], Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(protocol, "DECLARE_SECONDS", 0.1)
    LimitFactory(id="queue:mail", version=0, max_running=1)
    settings.PGQUEUE = {"LIMITS": {"queue:mail": {"max_running": 2}, "tenant:acme": {"max_running": 3}}}
    enqueue_many([double.bind(1)])
    other = open_connection()
    other.autocommit = False
    other.execute("SELECT FROM pgqueue_limit FOR UPDATE")
    assert work() == 0
    assert Job.objects.get().state == "succeeded"
    assert dict(Limit.objects.values_list("id", "max_running")) == {"queue:mail": 1, "tenant:acme": 3}
    assert "limits.undeclared error=QueryCanceled sqlstate=57014" in caplog.text
    other.rollback()
    each = upkeep_of(limits=settings.PGQUEUE["LIMITS"])
    each._round()
    assert Limit.objects.get(id="queue:mail").max_running == 2
    assert each._limits is None


# stopping


def test_a_stop_writes_what_is_left() -> None:
    tally = Tally()
    each = upkeep_of(tally=tally)
    each.start()
    counted(tally)
    each.add_queues({"mail"})
    each.stop()
    assert not each.is_alive()
    assert MinuteStat.objects.get().jobs == 1
    assert Queue.objects.get().name == "mail"


def test_without_a_server_nothing_is_lost_and_nothing_raises(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tally = Tally()
    counted(tally)
    each = upkeep_of(tally=tally)
    with monkeypatch.context() as patched:
        patched.setitem(django.settings_dict, "HOST", "/nowhere")
        patched.setitem(django.settings_dict, "OPTIONS", {})
        each._round()
    assert "part=connection" in caplog.text
    each._round()
    assert MinuteStat.objects.get().jobs == 1


def test_the_figures_of_a_worker_are_there_when_it_has_ended() -> None:
    enqueue_many(double.bind(number) for number in range(3))
    work()
    assert sum(MinuteStat.objects.values_list("jobs", flat=True)) == 3
