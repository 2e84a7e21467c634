"""The words of the queue: states, stages, policies, outcomes, and the legal moves of a job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class State(StrEnum):
    """Where a job stands; the value is what `pgqueue_job.state` holds."""

    PENDING = "pending"
    RETRYING = "retrying"
    RUNNING = "running"
    PAUSED = "paused"
    UNKNOWN = "unknown"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"


WAITING = (State.PENDING, State.RETRYING)
FINAL = (State.SUCCEEDED, State.DEAD, State.CANCELLED)


class Stage(StrEnum):
    """How far an effect got. From `OUTCOME_UNKNOWN` on, nobody may say that the request was not sent."""

    NOT_CALLED = "not_called"
    OUTCOME_UNKNOWN = "outcome_unknown"
    RESULT_KNOWN = "result_known"
    CONFIRMING = "confirming"
    CONFIRMED = "confirmed"


_WORST_FIRST = (Stage.OUTCOME_UNKNOWN, Stage.RESULT_KNOWN, Stage.CONFIRMING, Stage.CONFIRMED)


def worst(stages: Iterable[str]) -> Stage:
    """Return the stage of a job whose effects stand so: the least settled one, `not_called` without any."""
    found = set(stages)
    return next((stage for stage in _WORST_FIRST if stage in found), Stage.NOT_CALLED)


class Recovery(StrEnum):
    """What an author declares about running a job again after its worker was lost."""

    TRANSACTIONAL = "transactional"
    IDEMPOTENT = "idempotent"
    PROBE = "probe"
    MANUAL = "manual"
    UNDECLARED = "undeclared"


class Lane(IntEnum):
    """Which claim takes a waiting job; the first column of the candidate index."""

    PLAIN = 0
    LANED = 1
    """It names a tenant, a shard key or a resource: claimed under the locks of its lane."""
    ALONE = 2
    """It has lost a lease: it runs in a process that runs nothing else, the quarantine where a worker has one."""
    ISOLATED = 3
    """Its quarantine was lost together with the worker that had started it: it runs in a worker that is empty."""
    BOUND = 4
    """Stored as plain, but its queue or task has a limit, a rate or a pause: claimed as a laned one."""


STORED = (Lane.PLAIN, Lane.LANED, Lane.ALONE, Lane.ISOLATED)
"""What the column holds. Whether a plain job is bound depends on rows that operators change."""


LIMIT_KINDS = ("queue", "tenant", "task", "resource")
"""Of what a limit bounds the jobs; its id is the kind and the name, as in `tenant:acme`."""


class Settle(StrEnum):
    """When the completion of a job is written."""

    TOGETHER = "together"
    """With others that end about the same time."""
    EACH = "each"
    """By its own thread, before that takes another job."""


class KeyOrder(StrEnum):
    """What an unfinished job of a task means to younger ones of its shard key."""

    SKIP = "skip"
    """They may run while it waits for its time, is held, or its outcome is unknown."""
    STRICT = "strict"
    """They wait until it has ended, whatever it waits for."""


class UniqueUntil(StrEnum):
    """How long a job keeps others of its task and unique key out."""

    FINISHED = "finished"
    """Until it ended: while it waits, runs, is held, or its outcome is unknown."""
    STARTED = "started"
    """Until it is claimed for the first time."""
    WINDOW = "window"
    """For `window_seconds` from its enqueue, whatever becomes of it."""


class OnDuplicate(StrEnum):
    """What an enqueue does that meets a job of its unique key."""

    KEEP = "keep"
    """Nothing: the answer is the job that is there."""
    REPLACE = "replace"
    """It gives the waiting job its own arguments, time and priority."""


class AttemptOutcome(StrEnum):
    """How one claim's execution ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    UNKNOWN = "unknown"
    """It left an effect whose outcome is unknown. Not charged: the run goes on after the verdict."""


class Outcome(StrEnum):
    """What came of an operator's action. Only `APPLIED` wrote anything to the target."""

    APPLIED = "applied"
    CHANGED = "changed"
    REFUSED_RUNNING = "refused_running"
    REFUSED_UNKNOWN = "refused_unknown"
    REFUSED_STATE = "refused_state"
    REFUSED_DUPLICATE = "refused_duplicate"
    GONE = "gone"
    BUSY = "busy"
    REPLAYED = "replayed"
    FORBIDDEN = "forbidden"
    REQUESTED = "requested"
    """It waits until a second person approves it."""


class By(StrEnum):
    """Who may make a move."""

    WORKER = "worker"
    TAKEOVER = "takeover"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class Transition:
    """One legal move of a job: the verb that makes it, and who may."""

    source: State
    target: State
    verb: str
    by: By


def _moves(verb: str, by: By, sources: tuple[State, ...], *targets: State) -> tuple[Transition, ...]:
    return tuple(Transition(source, target, verb, by) for source in sources for target in targets)


TRANSITIONS: tuple[Transition, ...] = (
    *_moves("claim", By.WORKER, WAITING, State.RUNNING),
    *_moves("complete", By.WORKER, (State.RUNNING,), State.SUCCEEDED),
    *_moves("retry", By.WORKER, (State.RUNNING,), State.RETRYING, State.DEAD, State.CANCELLED),
    *_moves("bury", By.WORKER, (State.RUNNING,), State.DEAD, State.CANCELLED),
    *_moves("settle_unknown", By.WORKER, (State.RUNNING,), State.RETRYING, State.UNKNOWN),
    *_moves("release", By.WORKER, (State.RUNNING,), State.PENDING, State.CANCELLED),
    *_moves(
        "take_over",
        By.TAKEOVER,
        (State.RUNNING,),
        State.RETRYING,
        State.CANCELLED,
        State.DEAD,
        State.UNKNOWN,
    ),
    *_moves("hold", By.OPERATOR, WAITING, State.PAUSED),
    *_moves("unhold", By.OPERATOR, (State.PAUSED,), *WAITING),
    *_moves("cancel", By.OPERATOR, (*WAITING, State.PAUSED), State.CANCELLED),
    *_moves("give_up", By.OPERATOR, (*WAITING, State.UNKNOWN), State.DEAD),
    *_moves("reconcile", By.OPERATOR, (State.UNKNOWN,), State.RETRYING, State.SUCCEEDED, State.DEAD),
    *_moves("requeue", By.OPERATOR, (State.DEAD, State.CANCELLED), State.PENDING),
    *_moves(
        "break_lease",
        By.OPERATOR,
        (State.RUNNING,),
        State.RETRYING,
        State.CANCELLED,
        State.DEAD,
        State.UNKNOWN,
    ),
)
