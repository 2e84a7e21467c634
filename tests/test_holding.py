"""What a process holds: which leases are renewed, and which are left to others."""

from __future__ import annotations

import pytest

from pgqueue import holding
from pgqueue.holding import Holdings
from pgqueue.protocol.claiming import Lease
from pgqueue.protocol.leasing import Renewal

LEASE_SECONDS = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_with_heartbeats(self, holdings: Holdings, seconds: float) -> None:
        """Let time pass in which the heartbeat gets through, and renews what is renewable."""
        for _ in range(int(seconds / 20)):
            self.now += 20
            beat(holdings, self)


def beat(holdings: Holdings, clock: Clock) -> set[int]:
    asked = holdings.renewable()
    renewal = Renewal(renewed=frozenset(asked), stop_requested=frozenset(), lost=frozenset())
    holdings.confirm(asked, renewal, asked_at=clock.now)
    holdings.hear(asked_at=clock.now)
    return set(asked)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(holding, "boot_seconds", clock)
    return clock


@pytest.fixture
def holdings(clock: Clock) -> Holdings:
    holdings = Holdings(LEASE_SECONDS)
    holdings.add([lease(1), lease(2)], asked_at=clock.now)
    return holdings


def lease(id: int) -> Lease:
    return Lease(**{**dict.fromkeys(Lease.__annotations__), "id": id, "fence": 10 * id, "task": "t", "queue": "q"})


def test_a_run_that_is_over_is_renewed_for_one_more_lease(holdings: Holdings, clock: Clock) -> None:
    clock.pass_with_heartbeats(holdings, 600)
    holdings.renewable()[1].end()
    clock.pass_with_heartbeats(holdings, 60)
    assert beat(holdings, clock) == {1, 2}
    clock.pass_with_heartbeats(holdings, 20)
    assert beat(holdings, clock) == {2}
    clock.pass_with_heartbeats(holdings, 60)
    assert not holdings.have_run_out()


def test_a_process_does_not_take_over_from_itself_what_it_still_has_an_ending_of(
    holdings: Holdings, clock: Clock
) -> None:
    holdings.renewable()[1].end()
    clock.pass_with_heartbeats(holdings, 600)
    assert beat(holdings, clock) == {2}
    assert holdings.kept() == [1, 2]
    clock.pass_with_heartbeats(holdings, 120)
    assert holdings.kept() == [2]


def test_what_is_not_renewed_any_more_tells_nothing_about_the_process(holdings: Holdings, clock: Clock) -> None:
    for held in holdings.renewable().values():
        held.end()
    clock.pass_with_heartbeats(holdings, 300)
    assert beat(holdings, clock) == set()
    assert not holdings.have_run_out()
    assert holdings.are_all_lost()


def test_a_lease_that_could_not_be_renewed_counts_though_its_run_is_over(holdings: Holdings, clock: Clock) -> None:
    """Somebody holds the row, against the ending and against the heartbeat."""
    for held in holdings.renewable().values():
        held.end()
    for _ in range(4):
        clock.now += 20
        holdings.renewable()
        holdings.hear(asked_at=clock.now)
    assert holdings.have_run_out()


def test_after_a_freeze_an_ending_has_its_chance_first(holdings: Holdings, clock: Clock) -> None:
    clock.pass_with_heartbeats(holdings, 600)
    holdings.renewable()[1].end()
    clock.now += 500
    assert holdings.kept() == [1, 2]
    assert holdings.have_run_out()
    assert beat(holdings, clock) == {1, 2}


def test_the_server_is_reachable_only_while_heartbeats_get_through(holdings: Holdings, clock: Clock) -> None:
    clock.pass_with_heartbeats(holdings, 600)
    assert holdings.reachable_seconds() == 600
    clock.now += 41
    assert holdings.reachable_seconds() == 0
    beat(holdings, clock)
    clock.now += 10
    assert holdings.reachable_seconds() == 10


def test_that_a_lease_is_lost_is_told_once_and_then_seldom(holdings: Holdings, clock: Clock) -> None:
    clock.now += 100
    told = []
    for _ in range(100):
        asked = holdings.renewable()
        lost = Renewal(renewed=frozenset(), stop_requested=frozenset(), lost=frozenset(asked))
        told += [lease.id for lease in holdings.confirm(asked, lost, asked_at=clock.now)]
        clock.now += 20
    assert told == [1, 2] * 4
