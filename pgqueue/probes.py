"""What a probe may answer about an effect whose outcome is unknown."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True)
class Happened:
    """It happened, with what the call would have returned, and how the other side calls it; a text is its own name."""

    result: Any = None
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class DidNotHappen:
    """It did not happen. Before the call's deadline that is not believed yet: the request may still arrive."""


@dataclass(frozen=True, slots=True)
class StillGoing:
    """The other side is at it: ask again in `retry_in` seconds."""

    retry_in: float


@dataclass(frozen=True, slots=True)
class CannotTell:
    """Nobody there knows: a person must decide."""

    why: str = ""


Answer = Happened | DidNotHappen | StillGoing | CannotTell


@dataclass(frozen=True, slots=True)
class ProbeContext:
    """The job that a probe asks for, with the arguments of its task."""

    job_id: int
    operation_key: str
    fence: int
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProbedEffect:
    """The effect that a probe is asked about; `key` is the idempotency key that its call was given."""

    name: str
    key: str
    first_called_at: datetime
    called_at: datetime
