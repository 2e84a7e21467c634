"""What a worker does about a job that is to run alone: decisions on a clock of the test's own."""

from __future__ import annotations

import pytest

from pgqueue.states import Lane
from pgqueue.worker.agenda import PATIENCE_SECONDS
from tests.test_agenda import Clock, ending, horizon, make_agenda, make_lease


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_it_sleeps_while_other_work_that_does_not_exist_has_its_time(clock: Clock) -> None:
    """An hour alone gives an hour to others: without any, neither to spin nor to oversleep."""
    agenda = make_agenda(clock)
    agenda.see(horizon(Lane.ALONE), poll_seconds=10)
    agenda.get(Lane.ALONE, [make_lease(7, Lane.ALONE)], asked=1)
    agenda.end(make_lease(7, Lane.ALONE), ending(7, run_seconds=0.5))
    assert agenda.lanes(held=0) == ()
    assert agenda.pause(held=0, waiting=0) == pytest.approx(0.5)
    clock.now += 0.5
    assert agenda.lanes(held=0) == (Lane.ALONE,)


def test_claims_pause_for_it_only_so_long_and_the_next_time_twice_as_long(clock: Clock) -> None:
    agenda = make_agenda(clock)

    def lanes() -> tuple[Lane, ...]:
        agenda.see(horizon(Lane.PLAIN, Lane.ALONE), poll_seconds=10)
        return agenda.lanes(held=1)

    assert lanes() == ()
    clock.now += PATIENCE_SECONDS
    assert lanes() == (Lane.PLAIN,)
    clock.now += PATIENCE_SECONDS
    assert lanes() == ()
    clock.now += 2 * PATIENCE_SECONDS - 1
    assert lanes() == ()
    clock.now += 1
    assert lanes() == (Lane.PLAIN,)


def test_a_wait_that_was_for_nothing_is_not_begun_again_at_once(clock: Clock) -> None:
    """Such as for a task that nobody here knows."""
    agenda = make_agenda(clock)
    agenda.see(horizon(Lane.PLAIN, Lane.ALONE), poll_seconds=10)
    assert agenda.lanes(held=1) == ()
    clock.now += 2
    assert agenda.lanes(held=0) == (Lane.ALONE,)
    agenda.get(Lane.ALONE, [], asked=1)
    clock.now += 7
    agenda.see(horizon(Lane.PLAIN, Lane.ALONE), poll_seconds=10)
    assert agenda.lanes(held=1) == (Lane.PLAIN,)
    clock.now += 1
    assert agenda.lanes(held=1) == ()
