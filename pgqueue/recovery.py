"""The decision table: what becomes of a running job whose owner is gone, or left an effect unknown.

One pure function serves endings, takeover and break lease, so that all give the same answer for the same
row. Its input is read from the row under its lock; `docs/when-a-worker-dies.md` prints the table.
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
    replay_safe: bool
    """Whether no effect with an unknown outcome was first called longer ago than a replay is safe."""


def decide(facts: Facts) -> State:
    """Return the state that a job without an owner goes to.

    An effect whose outcome is unknown outweighs everything: only `idempotent` may run again over it, under the same
    operation key and while the remote system still knows that, and nothing may end as if it had not happened.
    """
    if facts.unknown_effects > 0:
        return State.RETRYING if _may_replay(facts) else State.UNKNOWN
    if facts.stop_requested:
        return State.CANCELLED
    return State.DEAD if facts.exhausted else State.RETRYING


def asks_probe(facts: Facts) -> bool:
    """Say whether the remote system is asked before a person is."""
    return facts.unknown_effects > 0 and facts.recovery == Recovery.PROBE


def _may_replay(facts: Facts) -> bool:
    return (
        facts.recovery == Recovery.IDEMPOTENT and facts.replay_safe and not facts.exhausted and not facts.stop_requested
    )


def decide_break(facts: Facts) -> State:
    """Decide as `decide`, for an operator who breaks a lease that has not run out.

    An undeclared task goes to `unknown` even without an effect: its worker may be alive, and
    nothing says that running it a second time beside itself is safe.
    """
    if facts.recovery == Recovery.UNDECLARED:
        return State.UNKNOWN
    return decide(facts)
