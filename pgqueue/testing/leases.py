"""Hold and lose leases inside a test: what a dead worker leaves behind, without a worker that dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .. import conf
from ..exceptions import JobNotFoundError
from ..holding import Held
from ..protocol.borrowing import borrowed
from ..protocol.claiming import Claimant, Lease
from ..protocol.connecting import job_alias
from ..protocol.reading import read_job
from ..protocol.rehearsing import claim_one, expire
from ..protocol.settling import Ending, EndingKind, settle
from ..states import State
from ..takeover import take_over_expired

WORKER_ID = 0
"""Worker of everything that these helpers claim: no worker process ever has this id."""

_running: dict[int, Held] = {}


def hold_lease(job_id: int | str) -> Lease:
    """Claim a job and do not run it, as a worker that was killed right after its claim.

    Raise `RuntimeError` when a worker could not claim it now: it is not due, not waiting, its queue is paused or
    its shard key busy.
    """
    alias = job_alias()
    lease = claim(alias, int(job_id))
    if lease is None:
        raise RuntimeError(
            f"Job {job_id} is {_state(alias, int(job_id))} and cannot be claimed now: only a pending or retrying job "
            f"can, when its time has come, its queue is not paused and no job of its shard key is running."
        )
    return lease


def expire_lease(job_id: int | str) -> None:
    """Let the lease of a running job have run out. `context.lease_lost` is true from then on in a task that runs.

    Nobody takes the job over until `take_over_now`, and until then its ending is accepted, as in a worker.
    Raise `RuntimeError` when the job is not running.
    """
    alias, id = job_alias(), int(job_id)
    with borrowed(alias) as connection:
        was_running = expire(connection, id)
    if not was_running:
        raise RuntimeError(f"Job {id} is {_state(alias, id)}: only a running job has a lease. See hold_lease().")
    if id in _running:
        _running[id].safe_until = 0.0


def take_over_now() -> dict[int, State]:
    """Take over every job whose lease has run out, as a live worker does; return where each went, by id."""
    with borrowed(job_alias()) as connection:
        return {taken.job.id: taken.verdict.target for taken in take_over_expired(connection)}


def replay_stale_ending(lease: Lease) -> bool:
    """Send the ending that the owner of a lease would send now, and say whether it was refused.

    It completes the job where the lease still counts, which is so until somebody has taken the job over.
    """
    ending = Ending(EndingKind.COMPLETE, lease.id, lease.fence)
    with borrowed(job_alias()) as connection:
        settled = settle(connection, worker_id=lease.worker_id, endings=[ending])
    return ending in settled.lost


def claim(alias: str, id: int) -> Lease | None:
    """Claim a certain job, if a worker could claim it now."""
    claimant = Claimant(WORKER_ID, tasks=(), lease_seconds=conf.current().lease_seconds)
    with borrowed(alias) as connection:
        return claim_one(connection, claimant, id)


@contextmanager
def noting(held: Held) -> Iterator[Held]:
    """Note what runs in this process, so that it hears of its lost lease without a heartbeat."""
    _running[held.lease.id] = held
    try:
        yield held
    finally:
        del _running[held.lease.id]


def _state(alias: str, id: int) -> str:
    found = read_job(alias, id)
    if found is None:
        raise JobNotFoundError(id)
    return found[0].state
