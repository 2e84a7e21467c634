"""The decision table, row by row; `docs/when-a-worker-dies.md` prints it."""

from __future__ import annotations

from itertools import product

import pytest

from pgqueue.recovery import Facts, asks_probe, decide, decide_break
from pgqueue.states import TRANSITIONS, By, Recovery, State

EVERY_FACT = [
    Facts(recovery=recovery, unknown_effects=unknown, stop_requested=stop, exhausted=exhausted, replay_safe=safe)
    for recovery, unknown, stop, exhausted, safe in product(Recovery, (0, 1, 2), *[(False, True)] * 3)
]


@pytest.mark.parametrize("recovery", Recovery)
def test_a_lost_job_without_unknown_effects_runs_again(recovery: Recovery) -> None:
    assert decide(Facts(recovery, 0, stop_requested=False, exhausted=False, replay_safe=True)) is State.RETRYING


@pytest.mark.parametrize("recovery", Recovery)
def test_a_job_lost_too_often_is_dead(recovery: Recovery) -> None:
    assert decide(Facts(recovery, 0, stop_requested=False, exhausted=True, replay_safe=True)) is State.DEAD


@pytest.mark.parametrize("recovery", Recovery)
def test_a_lost_job_that_was_asked_to_stop_is_cancelled(recovery: Recovery) -> None:
    assert decide(Facts(recovery, 0, stop_requested=True, exhausted=True, replay_safe=True)) is State.CANCELLED


@pytest.mark.parametrize("facts", [facts for facts in EVERY_FACT if facts.unknown_effects], ids=str)
def test_an_unknown_effect_goes_to_a_person_unless_a_replay_is_declared_safe(facts: Facts) -> None:
    is_over = facts.stop_requested or facts.exhausted
    may_replay = facts.recovery == Recovery.IDEMPOTENT and facts.replay_safe and not is_over
    assert decide(facts) is (State.RETRYING if may_replay else State.UNKNOWN)


@pytest.mark.parametrize("facts", EVERY_FACT, ids=str)
def test_the_other_side_is_asked_exactly_where_it_can_be_and_something_is_unknown(facts: Facts) -> None:
    assert asks_probe(facts) == (facts.recovery == Recovery.PROBE and facts.unknown_effects > 0)
    assert not asks_probe(facts) or decide(facts) is State.UNKNOWN


def test_a_broken_lease_of_an_undeclared_task_waits_for_a_person() -> None:
    facts = Facts(Recovery.UNDECLARED, 0, stop_requested=False, exhausted=False, replay_safe=True)
    assert decide_break(facts) is State.UNKNOWN


@pytest.mark.parametrize("facts", [facts for facts in EVERY_FACT if facts.recovery != Recovery.UNDECLARED], ids=str)
def test_a_broken_lease_of_a_declared_task_is_decided_as_a_lost_one(facts: Facts) -> None:
    assert decide_break(facts) is decide(facts)


@pytest.mark.parametrize(("by", "decision"), [(By.TAKEOVER, decide), (By.OPERATOR, decide_break)])
def test_every_decision_is_a_legal_move_and_every_legal_move_is_decided(by: By, decision) -> None:
    verb = "take_over" if by is By.TAKEOVER else "break_lease"
    legal = {move.target for move in TRANSITIONS if move.verb == verb and move.by is by}
    assert {decision(facts) for facts in EVERY_FACT} == legal
