"""What the dispatcher does next: pure decisions on a clock of the test's own."""

from __future__ import annotations

import pytest

from pgqueue.protocol.claiming import Lease
from pgqueue.protocol.looking import Horizon
from pgqueue.protocol.marks import REST_AT_MOST_SECONDS, REST_RATIO
from pgqueue.protocol.settling import Ending, EndingKind
from pgqueue.states import Lane
from pgqueue.worker.agenda import (
    ALONE,
    BUSY_LOOK_SECONDS,
    HOARD_SECONDS,
    START_SECONDS,
    Agenda,
    Source,
)
from pgqueue.worker.isolation import FRESH_SECONDS, SPREAD
from pgqueue.worker.pace import Pace, Pool

PLAIN = Source(Lane.PLAIN, Pool.THREADS)
LANED = Source(Lane.LANED, Pool.THREADS)
BOUND = Source(Lane.BOUND, Pool.THREADS)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make_agenda(clock: Clock, *, concurrency: int = 4, max_jobs: int | None = None) -> Agenda:
    paces = {Pool.THREADS: Pace(slots=concurrency, prefetch_seconds=0.2, batch_size=100)}
    return Agenda(paces=paces, notify_window_seconds=0.05, max_jobs=max_jobs, clock=clock)


def make_steady_agenda(clock: Clock) -> Agenda:
    """Return the agenda of a worker that has run for long enough to take a job that is to run alone."""
    agenda = make_agenda(clock)
    clock.now += FRESH_SECONDS * (1 + SPREAD)
    return agenda


def threads(count: int) -> dict[Pool, int]:
    return {Pool.THREADS: count}


def make_lease(id: int = 1, lane: Lane = Lane.PLAIN) -> Lease:
    return Lease(
        id=id,
        worker_id=1,
        fence=id,
        version=2,
        queue="default",
        task="t",
        priority=0,
        lane=lane,
        attempts=0,
        max_attempts=1,
        lease_losses=0,
        max_run_seconds=None,
        recovery="undeclared",
        tenant=None,
        shard_key=None,
        operation_key=None,
        created_epoch=0.0,
        run_epoch=0.0,
        args=None,
        kwargs=None,
    )


def on_threads(lease: Lease) -> Pool:
    return Pool.THREADS


def ending(id: int = 1, kind: EndingKind = EndingKind.COMPLETE, **more: float) -> Ending:
    return Ending(kind, id, id, **more)


def horizon(*lanes: Lane, due: float | None = None, expiry: float | None = None) -> Horizon:
    return Horizon(frozenset(lanes), due, expiry, frozenset())


def test_a_new_worker_claims_before_it_looks(clock: Clock) -> None:
    agenda = make_agenda(clock)
    assert agenda.sources(held=threads(0)) == (PLAIN,)
    assert agenda.room(PLAIN, held=threads(0)) == 4


def test_an_empty_lane_is_not_asked_again_until_somebody_says_so(clock: Clock) -> None:
    agenda = make_agenda(clock)
    agenda.see(horizon(), poll_seconds=10)
    assert agenda.sources(held=threads(0)) == ()
    assert agenda.pause(held=threads(0), waiting=0) == 10
    agenda.wake()
    assert agenda.sources(held=threads(0)) == (PLAIN,)


def test_a_woken_worker_looks_again_after_the_window_of_the_one_who_woke_it(clock: Clock) -> None:
    agenda = make_agenda(clock)
    agenda.see(horizon(), poll_seconds=10)
    agenda.wake()
    agenda.get(PLAIN, 0, asked=4)
    assert agenda.pause(held=threads(0), waiting=0) == pytest.approx(0.05)


@pytest.mark.parametrize(("due", "expiry", "slept"), [(3.0, None, 3.0), (None, 2.0, 2.0), (3.0, 2.0, 2.0)])
def test_it_sleeps_until_the_next_due_row_or_the_next_expiry(
    clock: Clock, due: float | None, expiry: float | None, slept: float
) -> None:
    agenda = make_agenda(clock)
    agenda.see(horizon(due=due, expiry=expiry), poll_seconds=10)
    assert agenda.pause(held=threads(0), waiting=0) == pytest.approx(slept)


def test_while_work_flows_it_looks_every_second(clock: Clock) -> None:
    agenda = make_agenda(clock)
    agenda.see(horizon(Lane.PLAIN), poll_seconds=10)
    assert agenda.pause(held=threads(4), waiting=0) == BUSY_LOOK_SECONDS


def test_a_short_claim_is_followed_by_a_look_once_threads_could_begin(clock: Clock) -> None:
    agenda = make_agenda(clock)
    agenda.see(horizon(Lane.PLAIN), poll_seconds=10)
    agenda.get(PLAIN, 1, asked=4)
    assert not agenda.wants_look()
    assert not agenda.is_empty()
    assert agenda.pause(held=threads(1), waiting=0) == pytest.approx(START_SECONDS)
    clock.now += START_SECONDS
    assert agenda.wants_look()


def test_short_claims_in_a_row_do_not_keep_putting_the_look_off(clock: Clock) -> None:
    agenda = make_agenda(clock)
    agenda.see(horizon(Lane.LANED), poll_seconds=10)
    for _ in range(3):
        agenda.get(LANED, 1, asked=4)
        clock.now += START_SECONDS / 2
    assert agenda.wants_look()


def test_a_wake_up_ends_a_nap(clock: Clock) -> None:
    agenda = make_agenda(clock)
    agenda.see(horizon(Lane.PLAIN), poll_seconds=10)
    agenda.get(PLAIN, 1, asked=4, more_in_seconds=0.05)
    assert agenda.sources(held=threads(0)) == ()
    agenda.wake()
    assert agenda.sources(held=threads(0)) == (PLAIN,)


@pytest.mark.parametrize(("more_in_seconds", "pause"), [(0.05, 0.05), (0.0, START_SECONDS)])
def test_a_source_that_has_more_is_asked_again_when_it_has(clock: Clock, more_in_seconds: float, pause: float) -> None:
    agenda = make_agenda(clock)
    agenda.see(horizon(Lane.LANED), poll_seconds=10)
    agenda.get(LANED, 0, asked=4, more_in_seconds=more_in_seconds)
    assert agenda.sources(held=threads(0)) == ()
    assert not agenda.is_empty()
    clock.now += agenda.pause(held=threads(0), waiting=0)
    assert clock.now == pytest.approx(1_000 + pause)
    assert agenda.sources(held=threads(0)) == (LANED,)


@pytest.mark.case("D06")
@pytest.mark.parametrize("source", [LANED, BOUND])
def test_a_slot_that_another_process_frees_is_found_within_a_look_and_an_own_one_at_once(
    clock: Clock, source: Source
) -> None:
    agenda = make_agenda(clock)
    agenda.see(horizon(source.lane), poll_seconds=10)
    agenda.get(source, 0, asked=4)
    assert agenda.pause(held=threads(0), waiting=0) == BUSY_LOOK_SECONDS
    agenda.end([(make_lease(lane=source.lane), ending())], pool_of=on_threads)
    assert agenda.sources(held=threads(0)) == (source,)


def test_rows_that_are_due_but_not_for_this_worker_do_not_make_it_spin(clock: Clock) -> None:
    agenda = make_agenda(clock)
    agenda.see(horizon(Lane.PLAIN), poll_seconds=10)
    agenda.get(PLAIN, 0, asked=4)
    assert agenda.pause(held=threads(0), waiting=0) == BUSY_LOOK_SECONDS


def test_the_guarded_lane_goes_first_every_other_time(clock: Clock) -> None:
    agenda = make_agenda(clock)
    agenda.see(horizon(Lane.PLAIN, Lane.LANED), poll_seconds=10)
    assert {agenda.sources(held=threads(0)), agenda.sources(held=threads(0))} == {
        (PLAIN, LANED),
        (LANED, PLAIN),
    }


def test_guarded_jobs_are_never_held_in_advance(clock: Clock) -> None:
    agenda = make_agenda(clock)
    for number in range(200):
        agenda.end([(make_lease(number), ending(number, run_seconds=0.0))], pool_of=on_threads)
    assert agenda.room(LANED, held=threads(3)) == 1
    assert agenda.room(PLAIN, held=threads(3)) == 50


def test_a_job_that_lost_a_lease_waits_until_nothing_is_held_and_then_runs_alone(clock: Clock) -> None:
    agenda = make_steady_agenda(clock)
    agenda.see(horizon(Lane.PLAIN, Lane.ALONE), poll_seconds=10)
    assert agenda.sources(held=threads(1)) == ()
    assert agenda.sources(held=threads(0)) == (ALONE,)
    agenda.get(ALONE, 1, asked=1)
    agenda.hold(ALONE, [make_lease(7, Lane.ALONE)])
    assert agenda.sources(held=threads(1)) == ()


def test_after_a_job_alone_other_work_gets_as_much_time(clock: Clock) -> None:
    agenda = make_steady_agenda(clock)
    agenda.see(horizon(Lane.PLAIN, Lane.ALONE), poll_seconds=10)
    agenda.get(ALONE, 1, asked=1)
    agenda.hold(ALONE, [make_lease(7, Lane.ALONE)])
    agenda.end([(make_lease(7, Lane.ALONE), ending(7, run_seconds=30.0))], pool_of=on_threads)
    agenda.see(horizon(Lane.PLAIN, Lane.ALONE), poll_seconds=10)
    assert agenda.sources(held=threads(0)) == (PLAIN,)
    clock.now += 30
    assert agenda.sources(held=threads(0)) == (ALONE,)


def test_a_retry_is_looked_for_when_it_is_due(clock: Clock) -> None:
    agenda = make_agenda(clock)
    agenda.see(horizon(), poll_seconds=10)
    agenda.end([(make_lease(), ending(kind=EndingKind.RETRY, delay_seconds=1.5))], pool_of=on_threads)
    assert agenda.pause(held=threads(0), waiting=0) == pytest.approx(1.5)


def test_the_job_count_bounds_every_lane(clock: Clock) -> None:
    agenda = make_agenda(clock, max_jobs=2)
    agenda.get(PLAIN, 1, asked=2)
    assert [agenda.room(source, held=threads(0)) for source in (PLAIN, LANED, ALONE)] == [1, 1, 1]
    agenda.get(ALONE, 1, asked=1)
    assert [agenda.room(source, held=threads(0)) for source in (PLAIN, LANED, ALONE)] == [0, 0, 0]
    assert agenda.is_spent()


def test_leases_that_wait_in_vain_are_given_back_and_fewer_are_held_after(clock: Clock) -> None:
    agenda = make_agenda(clock)
    for number in range(200):
        agenda.end([(make_lease(number), ending(number, run_seconds=0.0))], pool_of=on_threads)
    assert not agenda.hoards(90)
    assert agenda.pause(held=threads(94), waiting=90) <= HOARD_SECONDS
    clock.now += HOARD_SECONDS
    agenda.end([], pool_of=on_threads)
    assert agenda.hoards(90)
    assert not agenda.hoards(0)
    agenda.give_back()
    assert agenda.room(PLAIN, held=threads(0)) == 4


def test_long_jobs_are_held_one_per_thread(clock: Clock) -> None:
    agenda = make_agenda(clock)
    for number in range(50):
        agenda.end([(make_lease(number), ending(number, run_seconds=60.0))], pool_of=on_threads)
    assert agenda.room(PLAIN, held=threads(0)) == 4


def test_no_claim_is_sent_for_a_trickle(clock: Clock) -> None:
    agenda = make_agenda(clock)
    for number in range(200):
        agenda.end([(make_lease(number), ending(number, run_seconds=0.0))], pool_of=on_threads)
    assert agenda.room(PLAIN, held=threads(80)) == 0
    assert agenda.room(PLAIN, held=threads(70)) == 30


def test_a_claim_takes_half_of_what_is_to_be_held(clock: Clock) -> None:
    """The threads have the other half while it is on its way."""
    agenda = make_agenda(clock)
    for number in range(200):
        agenda.end([(make_lease(number), ending(number, run_seconds=0.0))], pool_of=on_threads)
    assert agenda.room(PLAIN, held=threads(0)) == 50
    assert agenda.room(PLAIN, held=threads(50)) == 50


def test_large_arguments_are_held_up_to_64_mib(clock: Clock) -> None:
    agenda = make_agenda(clock)
    for number in range(200):
        agenda.end([(make_lease(number), ending(number, run_seconds=0.0))], pool_of=on_threads)
    large = make_lease()._replace(args="x" * 2**20)
    agenda.hold(PLAIN, [large] * 50)
    assert agenda.room(PLAIN, held=threads(0)) == 32
    assert agenda.room(PLAIN, held=threads(44)) == 20
    agenda.hold(PLAIN, [make_lease()] * 20)
    assert agenda.room(PLAIN, held=threads(44)) == 36


def test_looks_are_apart_by_a_multiple_of_what_they_take(clock: Clock) -> None:
    """Under a snapshot that somebody holds for hours a look reads for half a second."""
    agenda = make_agenda(clock)
    agenda.see(horizon(Lane.PLAIN), poll_seconds=10, took_seconds=0.2)
    agenda.get(PLAIN, 1, asked=4)
    assert not agenda.wants_look()
    assert not agenda.is_empty()
    assert agenda.pause(held=threads(0), waiting=0) == pytest.approx(REST_RATIO * 0.2)
    clock.now += REST_RATIO * 0.2
    assert agenda.wants_look()
    agenda.see(horizon(Lane.PLAIN), poll_seconds=60, took_seconds=3.0)
    agenda.look_now()
    clock.now += REST_AT_MOST_SECONDS - 1
    assert not agenda.wants_look()
    clock.now += 1
    assert agenda.wants_look()


# -- two pools ---------------------------------------------------------------------------------------------

ON_LOOP = Source(Lane.PLAIN, Pool.LOOP)


@pytest.fixture
def both(clock: Clock) -> Agenda:
    """An agenda of four threads and a loop with room for ten."""
    paces = {
        Pool.THREADS: Pace(slots=4, prefetch_seconds=0.2, batch_size=100),
        Pool.LOOP: Pace(slots=10, prefetch_seconds=0.2, batch_size=10),
    }
    return Agenda(paces=paces, notify_window_seconds=0.05, max_jobs=None, clock=clock)


def counts(on_threads: int, on_loop: int) -> dict[Pool, int]:
    return {Pool.THREADS: on_threads, Pool.LOOP: on_loop}


def test_each_pool_has_a_claim_and_room_of_its_own(both: Agenda) -> None:
    assert both.sources(held=counts(0, 0)) == (PLAIN, ON_LOOP)
    assert [both.room(source, held=counts(4, 3)) for source in (PLAIN, ON_LOOP)] == [0, 7]
    assert [both.room(source, held=counts(1, 10)) for source in (PLAIN, ON_LOOP)] == [3, 0]


def test_a_full_pool_does_not_keep_the_worker_awake(both: Agenda) -> None:
    both.see(horizon(Lane.PLAIN), poll_seconds=10)
    both.get(PLAIN, 0, asked=4)
    assert both.pause(held=counts(0, 10), waiting=0) == BUSY_LOOK_SECONDS


def test_a_job_alone_may_be_of_any_pool_and_waits_for_both(both: Agenda) -> None:
    both.see(horizon(Lane.ALONE), poll_seconds=10)
    assert both.sources(held=counts(0, 1)) == ()
    assert both.sources(held=counts(0, 0)) == (ALONE,)
    assert [both.room(ALONE, held=counts(*held)) for held in ((0, 0), (1, 0), (0, 1))] == [1, 0, 0]


def test_a_slow_claim_that_found_too_little_rests_before_it_is_sent_again(both: Agenda, clock: Clock) -> None:
    both.see(horizon(Lane.PLAIN), poll_seconds=10)
    both.get(ON_LOOP, 0, asked=10, took_seconds=0.2)
    both.see(horizon(Lane.PLAIN), poll_seconds=10)
    both.wake()
    assert both.sources(held=counts(0, 0)) == (PLAIN,)
    clock.now += REST_RATIO * 0.2 - 0.1
    both.see(horizon(Lane.PLAIN), poll_seconds=10)
    both.get(PLAIN, 0, asked=4)
    assert both.pause(held=counts(0, 0), waiting=0) == pytest.approx(0.1)
    assert not both.is_empty()
    clock.now += 0.11
    assert both.sources(held=counts(0, 0)) == (ON_LOOP,)


def test_jobs_that_wait_for_their_commit_are_shared_by_all_threads(clock):
    """However short the body: what a slot is taken for counts."""
    pace = Pace(slots=4, prefetch_seconds=0.2, batch_size=100)
    agenda = Agenda(paces={Pool.THREADS: pace}, notify_window_seconds=0.05, max_jobs=None, clock=clock)
    short = Ending(EndingKind.COMPLETE, 1, 1, run_seconds=0.00001)
    for ending, crew in ((short, 1), (short._replace(settle_seconds=0.002), 4)):
        for _ in range(100):
            agenda.end([(make_lease(), ending)], pool_of=on_threads)
        assert pace.crew() == crew
