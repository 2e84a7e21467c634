"""What a worker counts of its own endings, and adds to the minute's figures."""

from __future__ import annotations

from typing import Any

import pytest

from pgqueue import enqueue_many
from pgqueue.models import MinuteStat
from pgqueue.worker import tally as tallies
from pgqueue.worker.tally import Tally, bucket
from tests.factories import MinuteStatFactory, from_now
from tests.inline import work
from tests.testapp.contract_tasks import double

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (-5, 0),
        (0, 0),
        (0.001, 0),
        (0.002, 1),
        (0.003, 2),
        (0.004, 2),
        (0.005, 3),
        (1.024, 10),
        (1.025, 11),
        (1e9, 31),
    ],
)
def test_each_bucket_goes_twice_as_far_as_the_one_before(seconds: float, expected: int) -> None:
    assert bucket(seconds) == expected


@pytest.fixture
def begun(session: Any) -> Any:
    """The connection beneath Django's, in the test's transaction: it begins with the first statement."""
    session.execute("SELECT 1")
    return session


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def counted(tally: Tally, *, outcome: str = "succeeded", error: str = "", runs: float = 0.5) -> None:
    kind = tally._kind("default", "shop.charge", outcome, error)
    tallies._count(kind, 0.001, runs)


def test_figures_are_written_now_and_then_and_add_up(begun: Any) -> None:
    clock = Clock()
    tally = Tally(clock=clock)
    counted(tally)
    tally.flush(begun)
    assert not MinuteStat.objects.exists()
    clock.now = 10.0
    tally.flush(begun)
    counted(tally, runs=4.0)
    counted(tally, outcome="dead", error="shop.CardDeclined")
    clock.now = 20.0
    tally.flush(begun)
    tally.flush(begun, at_once=True)
    rows = {row.outcome: row for row in MinuteStat.objects.all()}
    assert (rows["succeeded"].jobs, rows["dead"].jobs) == (2, 1)
    assert rows["succeeded"].waits == [2]
    assert rows["succeeded"].runs == [0] * 9 + [1, 0, 0, 1]
    assert rows["dead"].error == "shop.CardDeclined"


def test_histograms_of_another_length_add_up_too(begun: Any) -> None:
    for runs in (4.0, 0.001, 0.5):
        tally = Tally()
        counted(tally, runs=runs)
        tally.flush(begun, at_once=True)
    row = MinuteStat.objects.get()
    assert (row.jobs, row.runs) == (3, [1] + [0] * 8 + [1, 0, 0, 1])


def test_what_cannot_be_written_is_kept(queue_connection: Any) -> None:
    tally = Tally()
    counted(tally)
    queue_connection.close()
    tally.flush(queue_connection, at_once=True)
    assert tally._kinds


def test_old_figures_are_forgotten(begun: Any) -> None:
    MinuteStatFactory(minute=from_now(-9 * 86_400), task="old")
    MinuteStatFactory(minute=from_now(-7 * 86_400), task="young")
    tally = Tally()
    counted(tally)
    tally.flush(begun, at_once=True)
    assert sorted(MinuteStat.objects.values_list("task", flat=True)) == ["shop.charge", "young"]


def test_too_many_kinds_are_told_apart_by_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "MOST_KINDS", 3)
    tally = Tally()
    for number in range(10):
        counted(tally, outcome="dead", error=f"E{number}")
    assert len(tally._kinds) == 4
    assert sum(kind["jobs"] for kind in tally._kinds.values()) == 10


@pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])
def test_a_worker_counts_what_it_ended() -> None:
    enqueue_many(double.bind(number) for number in range(5))
    work()
    rows = list(MinuteStat.objects.all())  # One row, or two where a minute ended meanwhile.
    assert {(row.outcome, row.task, row.error) for row in rows} == {("succeeded", double.module_path, "")}
    assert sum(row.jobs for row in rows) == 5
    assert sum(sum(row.waits) for row in rows) == sum(sum(row.runs) for row in rows) == 5
