"""What a worker does about a job that is to run alone: decisions on a clock of the test's own."""

from __future__ import annotations

import pytest

from pgqueue.states import Lane
from pgqueue.worker.agenda import ALONE, PATIENCE_SECONDS, Source
from pgqueue.worker.pace import Pool
from tests.test_agenda import PLAIN, Clock, ending, horizon, make_agenda, make_lease, threads


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_after_an_hour_alone_the_next_one_waits_only_if_other_work_does(clock: Clock) -> None:
    """An hour alone gives an hour to others; where there are none, nobody gains by idling."""
    agenda = make_agenda(clock)
    agenda.see(horizon(Lane.ALONE), poll_seconds=10)
    agenda.get(ALONE, 1, asked=1)
    agenda.hold(ALONE, [make_lease(7, Lane.ALONE)])
    agenda.end([(make_lease(7, Lane.ALONE), ending(7, run_seconds=3600))], pool_of=lambda lease: Pool.THREADS)
    assert agenda.sources(held=threads(0)) == (ALONE,)
    assert agenda.pause(held=threads(0), waiting=0) == 0
    agenda.see(horizon(Lane.PLAIN, Lane.ALONE), poll_seconds=10)
    assert agenda.sources(held=threads(0)) == (PLAIN,)
    clock.now += 3600
    assert agenda.sources(held=threads(0)) == (ALONE,)


def test_claims_pause_for_it_only_so_long_and_the_next_time_twice_as_long(clock: Clock) -> None:
    agenda = make_agenda(clock)

    def sources() -> tuple[Source, ...]:
        agenda.see(horizon(Lane.PLAIN, Lane.ALONE), poll_seconds=10)
        return agenda.sources(held=threads(1))

    assert sources() == ()
    clock.now += PATIENCE_SECONDS
    assert sources() == (PLAIN,)
    clock.now += PATIENCE_SECONDS
    assert sources() == ()
    clock.now += 2 * PATIENCE_SECONDS - 1
    assert sources() == ()
    clock.now += 1
    assert sources() == (PLAIN,)


def test_a_wait_that_was_for_nothing_is_not_begun_again_at_once(clock: Clock) -> None:
    """Such as for a task that nobody here knows."""
    agenda = make_agenda(clock)
    agenda.see(horizon(Lane.PLAIN, Lane.ALONE), poll_seconds=10)
    assert agenda.sources(held=threads(1)) == ()
    clock.now += 2
    assert agenda.sources(held=threads(0)) == (ALONE,)
    agenda.get(ALONE, 0, asked=1)
    clock.now += 7
    agenda.see(horizon(Lane.PLAIN, Lane.ALONE), poll_seconds=10)
    assert agenda.sources(held=threads(1)) == (PLAIN,)
    clock.now += 1
    assert agenda.sources(held=threads(1)) == ()
