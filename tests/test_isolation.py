"""What a worker does about a job that is to run alone: decisions on a clock of the test's own."""

from __future__ import annotations

import pytest

from pgqueue.states import Lane
from pgqueue.worker.agenda import ALONE, Agenda, Source
from pgqueue.worker.isolation import FRESH_SECONDS, PATIENCE_SECONDS, SPREAD, TIMES_THE_WAIT
from pgqueue.worker.pace import Pool
from tests.test_agenda import PLAIN, Clock, ending, horizon, make_agenda, make_lease, make_steady_agenda, threads

HOUR = 3600


@pytest.fixture
def clock() -> Clock:
    return Clock()


def sources(agenda: Agenda, *lanes: Lane, held: int) -> tuple[Source, ...]:
    """Look at a database where these lanes have due rows, and return what to claim from."""
    agenda.see(horizon(*lanes), poll_seconds=10)
    return agenda.sources(held=threads(held))


def test_after_an_hour_alone_the_next_one_waits_only_if_other_work_does(clock: Clock) -> None:
    """An hour alone gives an hour to others; where there are none, nobody gains by idling."""
    agenda = make_steady_agenda(clock)
    agenda.see(horizon(Lane.ALONE), poll_seconds=10)
    agenda.get(ALONE, 1, asked=1)
    agenda.hold(ALONE, [make_lease(7, Lane.ALONE)])
    agenda.end([(make_lease(7, Lane.ALONE), ending(7, run_seconds=3600))], pool_of=lambda lease: Pool.THREADS)
    assert agenda.sources(held=threads(0)) == (ALONE,)
    assert agenda.pause(held=threads(0), waiting=0) == 0
    assert sources(agenda, Lane.PLAIN, Lane.ALONE, held=0) == (PLAIN,)
    clock.now += 3600
    assert sources(agenda, Lane.PLAIN, Lane.ALONE, held=0) == (ALONE,)


def test_beside_a_job_of_hours_claims_pause_for_at_most_a_tenth_of_the_time(clock: Clock) -> None:
    agenda = make_steady_agenda(clock)
    paused, pauses, was_paused = 0, [], False
    for _ in range(10 * HOUR):
        is_paused = sources(agenda, Lane.PLAIN, Lane.ALONE, held=1) == ()
        if is_paused and not was_paused:
            pauses.append(0)
        if is_paused:
            pauses[-1] += 1
        paused, was_paused = paused + is_paused, is_paused
        clock.now += 1
    assert max(pauses) <= PATIENCE_SECONDS + 1
    assert 10 * HOUR / 20 <= paused <= 10 * HOUR / 10


def test_processes_that_wait_at_the_same_moment_do_not_do_so_again(clock: Clock) -> None:
    agendas = [make_steady_agenda(clock) for _ in range(10)]
    for agenda in agendas:
        assert sources(agenda, Lane.PLAIN, Lane.ALONE, held=1) == ()
    clock.now += PATIENCE_SECONDS
    for agenda in agendas:
        assert sources(agenda, Lane.PLAIN, Lane.ALONE, held=1) == (PLAIN,)
    paused_at: dict[int, int] = {}
    for second in range(200):
        for number, agenda in enumerate(agendas):
            if sources(agenda, Lane.PLAIN, Lane.ALONE, held=1) == ():
                paused_at.setdefault(number, second)
        clock.now += 1
    assert len(paused_at) == len(agendas)
    assert len(set(paused_at.values())) > 1


@pytest.mark.parametrize("ended_by", ["nobody here may run it", "another worker takes it"])
def test_a_wait_in_vain_gives_other_work_ten_times_as_long(clock: Clock, ended_by: str) -> None:
    agenda = make_steady_agenda(clock)
    assert sources(agenda, Lane.PLAIN, Lane.ALONE, held=1) == ()
    clock.now += 2
    if ended_by == "another worker takes it":
        assert sources(agenda, Lane.PLAIN, held=1) == (PLAIN,)
    else:
        assert sources(agenda, Lane.PLAIN, Lane.ALONE, held=0) == (ALONE,)
        agenda.get(ALONE, 0, asked=1)
    clock.now += 2 * TIMES_THE_WAIT - 1
    assert sources(agenda, Lane.PLAIN, Lane.ALONE, held=1) == (PLAIN,)
    clock.now += 1 + 2 * TIMES_THE_WAIT * SPREAD
    assert sources(agenda, Lane.PLAIN, Lane.ALONE, held=1) == ()


def test_a_new_process_serves_other_work_first(clock: Clock) -> None:
    """The job may have killed the process before it."""
    agenda = make_agenda(clock)
    assert sources(agenda, Lane.PLAIN, Lane.ALONE, held=0) == (PLAIN,)
    clock.now += FRESH_SECONDS - 1
    assert sources(agenda, Lane.PLAIN, Lane.ALONE, held=0) == (PLAIN,)
    clock.now += 1 + FRESH_SECONDS * SPREAD
    assert sources(agenda, Lane.PLAIN, Lane.ALONE, held=0) == (ALONE,)


def test_a_new_process_without_other_work_takes_the_job_at_once(clock: Clock) -> None:
    assert sources(make_agenda(clock), Lane.ALONE, held=0) == (ALONE,)


def test_after_a_long_wait_beside_no_other_work_what_comes_is_served_at_once(clock: Clock) -> None:
    """The wait cost nobody anything so far."""
    agenda = make_steady_agenda(clock)
    for _ in range(60):
        sources(agenda, Lane.ALONE, held=1)
        clock.now += 1
    assert sources(agenda, Lane.PLAIN, Lane.ALONE, held=1) == (PLAIN,)
