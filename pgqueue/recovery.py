"""The decision table: what becomes of a running job whose owner is gone.

One pure function serves takeover and break lease, so that both give the same answer for the same
row. Its input is read from the row under its lock; `docs/guarantees.md` prints the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from .states import Recovery, State


@dataclass(frozen=True, slots=True)
class Facts:
    """What a decision may look at: columns of the locked job row, nothing else."""

    recovery: str
    unknown_effects: int
    stop_requested: bool
    exhausted: bool


def decide(facts: Facts) -> State:
    """Return the state that a job without an owner goes to.

    An effect whose outcome is unknown outweighs everything: only `idempotent` may run again over
    it, under the same operation key, and nothing may end as if it had not happened.
    """
    if facts.unknown_effects > 0:
        replay = facts.recovery == Recovery.IDEMPOTENT and not facts.exhausted and not facts.stop_requested
        return State.RETRYING if replay else State.UNKNOWN
    if facts.stop_requested:
        return State.CANCELLED
    return State.DEAD if facts.exhausted else State.RETRYING


def decide_break(facts: Facts) -> State:
    """Decide as `decide`, for an operator who breaks a lease that has not run out.

    An undeclared task goes to `unknown` even without an effect: its worker may be alive, and
    nothing says that running it a second time beside itself is safe.
    """
    if facts.recovery == Recovery.UNDECLARED:
        return State.UNKNOWN
    return decide(facts)
