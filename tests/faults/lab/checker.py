"""Checks what was recorded of a run against the promises. It reads data only, and is tested with planted faults."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pgqueue.states import FINAL, TRANSITIONS, Recovery, State

from .ledger import Entry

LEGAL = {(move.source.value, move.target.value) for move in TRANSITIONS}
MAY_WAIT_FOR_A_PERSON = (Recovery.MANUAL.value, Recovery.UNDECLARED.value)
BUCKET_SECONDS = 0.5
WINDOW_BUCKETS = 4
ENOUGH = 0.95


@dataclass(frozen=True)
class Move:
    """One change of a job's row; `old_state` is None for its insert. `at` is in seconds of the epoch."""

    job_id: int
    old_state: str | None
    new_state: str
    old_fence: int
    new_fence: int
    old_version: int
    new_version: int
    at: float


@dataclass(frozen=True)
class Row:
    """How a job's row stands at the end. `account` says what it waits for; None if for nothing that will come."""

    job_id: int
    state: str
    recovery: str
    calls: bool
    """Whether its task has an effect at the provider."""
    writes: bool
    """Whether its task writes a row of its author, in the same transaction as the confirmation or the completion."""
    account: str | None = None
    losses: int = 0


@dataclass(frozen=True)
class Evidence:
    """Everything that was recorded of one run."""

    ledger: Sequence[Entry]
    rows: Sequence[Row]
    moves: Sequence[Move]
    written: Mapping[int, int]
    """How many rows of its author each job left."""
    lost_attempts: int = 0


@dataclass
class Findings:
    """What was found, as sentences that name the job; an empty list keeps the promise."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    illegal: list[str] = field(default_factory=list)
    went_back: list[str] = field(default_factory=list)
    jobs: int = 0
    moves: int = 0
    takeovers: int = 0
    waits_for_person: int = 0

    def all(self) -> list[str]:
        return [*self.lost, *self.doubled, *self.stuck, *self.illegal, *self.went_back]


def check(evidence: Evidence) -> Findings:
    """Return every broken promise of a run that has come to rest."""
    rows = {row.job_id: row for row in evidence.rows}
    return Findings(
        lost=[*_lost(evidence, rows), *_untraced_takeovers(evidence)],
        doubled=_doubled(evidence, rows),
        stuck=_stuck(evidence.rows),
        illegal=_illegal(evidence.moves, rows),
        went_back=_went_back(evidence.moves),
        jobs=len(rows),
        moves=len(evidence.moves),
        takeovers=sum(row.losses for row in evidence.rows),
        waits_for_person=sum(row.state == State.UNKNOWN for row in evidence.rows),
    )


def _lost(evidence: Evidence, rows: Mapping[int, Row]) -> list[str]:
    """A job is lost when its enqueue was confirmed and it is gone, given up unasked, or done by name only."""
    ran = {entry.facts["job"] for entry in evidence.ledger if entry.kind == "ran"}
    happened = {entry.facts["job"] for entry in evidence.ledger if entry.kind == "effect"}
    enqueued = {entry.facts["job"] for entry in evidence.ledger if entry.kind == "enqueued"}
    found = [f"job {job}: enqueued, and there is no row" for job in sorted(enqueued - rows.keys())]
    for row in rows.values():
        if row.state in (State.DEAD, State.CANCELLED):
            found.append(f"job {row.job_id}: {row.state}, though nobody gave it up")
        elif row.state == State.SUCCEEDED:
            if row.job_id not in ran:
                found.append(f"job {row.job_id}: succeeded, and never ran to its end")
            if row.calls and row.job_id not in happened:
                found.append(f"job {row.job_id}: succeeded without its effect")
            if row.writes and not evidence.written.get(row.job_id):
                found.append(f"job {row.job_id}: succeeded without its author's row")
    return found


def _untraced_takeovers(evidence: Evidence) -> list[str]:
    losses = sum(row.losses for row in evidence.rows)
    if losses == evidence.lost_attempts:
        return []
    return [f"{losses} leases lost, {evidence.lost_attempts} attempts on record as lost"]


def _doubled(evidence: Evidence, rows: Mapping[int, Row]) -> list[str]:
    """An effect is allowed once for each job, whatever the policy: the provider keeps the keys of `idempotent`."""
    effects = Counter(entry.facts["job"] for entry in evidence.ledger if entry.kind == "effect")
    requests = Counter(entry.facts["job"] for entry in evidence.ledger if entry.kind == "request")
    found = [
        f"job {job}: {times} effects of {requests[job]} requests"
        f" ({rows[job].recovery if job in rows else 'no row'}, {rows[job].state if job in rows else '-'})"
        for job, times in effects.items()
        if times > 1
    ]
    found += [f"job {job}: {times} rows of its author" for job, times in evidence.written.items() if times > 1]
    for job, times in evidence.written.items():
        transactional = job in rows and rows[job].recovery == Recovery.TRANSACTIONAL
        if times and transactional and rows[job].state != State.SUCCEEDED:
            found.append(f"job {job}: {rows[job].state}, and its transaction is committed")
    return found


def _stuck(rows: Iterable[Row]) -> list[str]:
    """After a calm in which everything could end, only a person or a known time may be waited for."""
    found = []
    for row in rows:
        if row.state in FINAL or row.account in ("due later", "to be probed", "queue paused"):
            continue
        if row.account == "waits for a person" and row.recovery in MAY_WAIT_FOR_A_PERSON:
            continue
        found.append(f"job {row.job_id}: {row.state} ({row.recovery}), {row.account or 'nobody will ever run it'}")
    return found


def _illegal(moves: Sequence[Move], rows: Mapping[int, Row]) -> list[str]:
    """Replay the moves of each job through the table of legal ones; the last must be what its row says."""
    found = []
    states: dict[int, str] = {}
    for move in moves:
        told = f"job {move.job_id}: {move.old_state} to {move.new_state}"
        if move.old_state != states.get(move.job_id):
            found.append(f"{told}, and it stood at {states.get(move.job_id)}")
        elif move.old_state is None:
            if move.new_state != State.PENDING:
                found.append(f"{told}: inserted so")
        elif move.old_state != move.new_state:
            if (move.old_state, move.new_state) not in LEGAL:
                found.append(f"{told}: no transition")
            elif move.new_version <= move.old_version:
                found.append(f"{told}: without a new version")
        states[move.job_id] = move.new_state
    found += [
        f"job {job}: its row says {rows[job].state}, the last move {state}"
        for job, state in states.items()
        if job in rows and rows[job].state != state
    ]
    found += [f"job {job}: a row without a recorded insert" for job in rows if job not in states]
    return found


def _went_back(moves: Sequence[Move]) -> list[str]:
    """A fence and a version never go back, and each claim has a fence that nobody had before."""
    found = []
    given: dict[int, int] = {}
    for move in moves:
        if move.new_fence < move.old_fence or move.new_version < move.old_version:
            found.append(
                f"job {move.job_id}: fence {move.old_fence} to {move.new_fence},"
                f" version {move.old_version} to {move.new_version}"
            )
        if move.new_state == State.RUNNING and move.old_state != State.RUNNING:
            if move.new_fence <= move.old_fence:
                found.append(f"job {move.job_id}: claimed without a new fence")
            if (other := given.setdefault(move.new_fence, move.job_id)) != move.job_id:
                found.append(f"job {move.job_id}: claimed with the fence {move.new_fence} of job {other}")
    return found


def throughput(instants: Iterable[float], *, since: float, until: float) -> list[int]:
    """Return how many jobs were done in each bucket of time."""
    buckets = Counter(int((at - since) / BUCKET_SECONDS) for at in instants if since <= at < until)
    return [buckets[number] for number in range(int((until - since) / BUCKET_SECONDS))]


def recovery_seconds(
    instants: Sequence[float],
    *,
    offered: float,
    calm_since: float,
    fault_since: float,
    fault_until: float,
    until: float,
) -> float | None:
    """Return how long after the fault the throughput of two seconds was back at 95 % of before; None if never.

    Before is at most what was offered, in jobs a second: more was the backlog of an earlier fault. Jobs that wait for a
    due time of their own do not count: the load goes on, and what is due is done.
    """
    before = throughput(instants, since=calm_since, until=fault_since)
    if not sum(before):
        return None
    rate = min(sum(before) / len(before), offered * BUCKET_SECONDS)
    after = throughput(instants, since=fault_until, until=until)
    for first in range(len(after) - WINDOW_BUCKETS + 1):
        if sum(after[first : first + WINDOW_BUCKETS]) >= ENOUGH * rate * WINDOW_BUCKETS:
            return first * BUCKET_SECONDS
    return None
