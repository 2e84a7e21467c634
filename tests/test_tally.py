"""What a worker counts of its own endings, and adds to the minute's figures."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from pgqueue import enqueue_many
from pgqueue.models import MinuteStat
from pgqueue.worker import tally as tallies
from pgqueue.worker.tally import Tally, bucket
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
        (float("inf"), 31),
    ],
)
def test_each_bucket_goes_twice_as_far_as_the_one_before(seconds: float, expected: int) -> None:
    assert bucket(seconds) == expected


@pytest.fixture
def begun(session: Any) -> Any:
    """The connection beneath Django's, in the test's transaction: it begins with the first statement."""
    session.execute("SELECT 1")
    return session


def counted(tally: Tally, *, outcome: str = "succeeded", error: str = "", runs: float = 0.5) -> None:
    kind = tallies._kind(tally._kinds, ("default", "shop.charge", outcome, error))
    tallies._count(kind, 0.001, runs)


def test_figures_that_are_written_add_up(begun: Any) -> None:
    tally = Tally()
    counted(tally)
    tally.flush(begun)
    counted(tally, runs=4.0)
    counted(tally, outcome="dead", error="shop.CardDeclined")
    tally.flush(begun)
    tally.flush(begun)
    assert not tally.has_news()
    rows = {row.outcome: row for row in MinuteStat.objects.all()}
    assert (rows["succeeded"].jobs, rows["dead"].jobs) == (2, 1)
    assert rows["succeeded"].waits == [2]
    assert rows["succeeded"].runs == [0] * 9 + [1, 0, 0, 1]
    assert rows["dead"].error == "shop.CardDeclined"


def test_histograms_of_another_length_add_up_too(begun: Any) -> None:
    for runs in (4.0, 0.001, 0.5):
        tally = Tally()
        counted(tally, runs=runs)
        tally.flush(begun)
    row = MinuteStat.objects.get()
    assert (row.jobs, row.runs) == (3, [1] + [0] * 8 + [1, 0, 0, 1])


def test_what_cannot_be_written_is_kept_and_added_to_what_comes(begun: Any, queue_connection: Any) -> None:
    queue_connection.close()
    tally = Tally()
    for runs in (4.0, 0.001):
        counted(tally, runs=runs)
        with pytest.raises(psycopg.OperationalError):
            tally.flush(queue_connection)
    assert tally.outcomes() == {"succeeded": 2}
    counted(tally, runs=0.5)
    tally.flush(begun)
    row = MinuteStat.objects.get()
    assert (row.jobs, row.waits, row.runs) == (3, [3], [1] + [0] * 8 + [1, 0, 0, 1])
    assert tally.outcomes() == {"succeeded": 3}
    assert not tally.has_news()


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
