"""Claims are held back while the server refuses one ending after the other, and one refused ending has its pause."""

from __future__ import annotations

from pgqueue.protocol.looking import Horizon
from pgqueue.protocol.settling import Ending, EndingKind, Settled, Written
from pgqueue.states import Lane, State
from pgqueue.worker.agenda import Agenda, Source
from pgqueue.worker.brake import PAUSE_CAP_SECONDS, REFUSED_IN_A_ROW, Brake
from pgqueue.worker.pace import Pool, paces_of
from pgqueue.worker.postponed import RETRY_BASE_SECONDS, Postponed


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


PLAIN = Source(Lane.PLAIN, Pool.THREADS)
NOTHING = {Pool.THREADS: 0}


def ending(id: int, kind: EndingKind = EndingKind.COMPLETE) -> Ending:
    return Ending(kind, id, fence=id)


def refused(*ids: int) -> Settled:
    return Settled(refused=[(ending(id), RuntimeError()) for id in ids])


def written(clock: Clock, *ids: int) -> Settled:
    return Settled({id: Written(State.SUCCEEDED, None) for id in ids})  # type: ignore[arg-type]


def braked(clock: Clock) -> tuple[Postponed, Brake]:
    brake = Brake(clock=clock)
    postponed = Postponed(brake, clock=clock)
    postponed.take([], refused(*range(1, REFUSED_IN_A_ROW + 1)))
    return postponed, brake


def test_endings_refused_in_a_row_hold_claims_back_until_one_is_written() -> None:
    clock = Clock()
    postponed, brake = braked(clock)
    assert brake.holds
    postponed.take([ending(3)], written(clock, 3))
    assert not brake.is_on


def test_one_job_whose_ending_is_refused_again_and_again_holds_nothing_back() -> None:
    brake = Brake(clock=(clock := Clock()))
    postponed = Postponed(brake, clock=clock)
    for _ in range(3 * REFUSED_IN_A_ROW):
        postponed.take([], refused(1))
    assert not brake.is_on


def test_refusals_with_an_ending_that_was_written_between_hold_nothing_back() -> None:
    brake = Brake(clock=(clock := Clock()))
    postponed = Postponed(brake, clock=clock)
    for id in range(1, 3 * REFUSED_IN_A_ROW, 2):
        postponed.take([], refused(id))
        postponed.take([ending(id + 1)], written(clock, id + 1))
    assert not brake.is_on


def test_neither_a_lost_job_nor_a_lease_that_is_given_back_lets_claims_go_on() -> None:
    clock = Clock()
    postponed, brake = braked(clock)
    postponed.take([ending(1)], Settled(lost=[ending(1)]))
    postponed.take([ending(99, EndingKind.RELEASE)], written(clock, 99))
    assert brake.is_on


def test_a_job_is_claimed_now_and_then_while_claims_are_held_back() -> None:
    clock = Clock()
    agenda = Agenda(paces=paces_of({Pool.THREADS: 4}), notify_window_seconds=0.0, max_jobs=None, clock=clock)
    agenda.see(Horizon(frozenset({Lane.PLAIN}), None, None, frozenset()), poll_seconds=60.0)
    assert agenda.room(PLAIN, held=NOTHING) > 1
    agenda.brake.note_refused(REFUSED_IN_A_ROW)
    assert agenda.sources(held=NOTHING) == ()
    assert 0 < agenda.pause(held=NOTHING, waiting=0) <= PAUSE_CAP_SECONDS
    clock.now += PAUSE_CAP_SECONDS
    assert PLAIN in agenda.sources(held=NOTHING)
    assert agenda.room(PLAIN, held=NOTHING) == 1
    agenda.get(PLAIN, 1, asked=1)
    assert agenda.sources(held=NOTHING) == ()


def test_leases_that_no_thread_has_begun_are_given_back_meanwhile() -> None:
    agenda = Agenda(paces=paces_of({Pool.THREADS: 4}), notify_window_seconds=0.0, max_jobs=None, clock=Clock())
    agenda.get(PLAIN, 4, asked=4)
    assert not agenda.hoards(3)
    agenda.brake.note_refused(REFUSED_IN_A_ROW)
    assert agenda.hoards(3)


def test_a_refused_ending_whose_row_is_locked_is_not_sent_again_at_once() -> None:
    postponed = Postponed(clock=(clock := Clock()))
    postponed.take([], refused(1))
    clock.now += RETRY_BASE_SECONDS
    assert postponed.due() == [ending(1)]
    postponed.take([], Settled(busy=[ending(1)]))
    assert postponed.due() == []
    assert postponed.pause(60.0) > 0
