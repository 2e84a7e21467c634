"""Short words for what the tests of statements do."""

from __future__ import annotations

from pgqueue.failures import Description, FailureClass
from pgqueue.protocol.claiming import Claimant, claim
from pgqueue.protocol.leasing import renew
from pgqueue.protocol.marks import as_param
from pgqueue.protocol.settling import Ending, EndingKind, Failure, settle
from pgqueue.sql import load
from pgqueue.states import Lane
from tests.factories import TASK

WORKER, OTHER_WORKER = -101, -202
NEW_ROUND = {
    "refused_ids": [],
    "refused_keys": [],
    "refused_limits": [],
    "from_lowest": False,
    "next_tenant": "",
    "used": 0,
    "places": "{}",
    "steps": 64,
}
FAILURE = Failure(
    FailureClass.SYSTEM, Description(class_path="builtins.RuntimeError", message="no", traceback="Traceback: no")
)


def claimant(**changes):
    return Claimant(**{"worker_id": WORKER, "tasks": (TASK,), "lease_seconds": 60.0, **changes})


def claim_ids(connection, *, lane=Lane.PLAIN, limit=10, turn=None, **changes):
    return [lease.id for lease in claim(connection, claimant(**changes), lane=lane, limit=limit, turn=turn)]


def claim_behind(connection, mark, *, limit=10, **changes):
    """Return the ids that a claim of one group gets from behind its mark, a group and its mark."""
    params = {**claimant(**changes).params(), "limit": limit, **as_param(*mark)}
    return [row[0] for row in connection.execute(load("claim_behind"), params).fetchall()]


def mark_of(job):
    """Return the job's group and the mark that a claim of it leaves there."""
    return (job.queue, job.priority, job.task), (job.run_at.timestamp(), job.id)


def pick(connection, *, limit=10, lane=Lane.LANED, **changes):
    """Return the ids that the first half of a guarded claim proposes, with their limits and keys locked."""
    stored = Lane.PLAIN if lane is Lane.BOUND else lane
    params = {**claimant(**changes).params(), **NEW_ROUND, "limit": limit, "lane": int(stored)}
    statement = "pick_laned" if lane is Lane.LANED else "pick_bound"
    return [id for id, _, got, *_ in connection.execute(load(statement), params).fetchall() if id and got]


def claim_picked(connection, ids, *, locked=None, **changes):
    """Return the ids that the second half claims of those proposed."""
    params = {**claimant(**changes).params(), "ids": ids, "locked": locked}
    return [row[0] for row in connection.execute(load("claim_picked"), params).fetchall()]


def renew_one(connection, job, *, worker_id=None, fence=None, lease_seconds=60.0):
    return renew(
        connection,
        worker_id=worker_id or WORKER,
        held={job.pk: job.fence if fence is None else fence},
        lease_seconds=lease_seconds,
    )


def ending(kind, job, *, fence=None, **facts):
    if kind in (EndingKind.RETRY, EndingKind.BURY):
        facts.setdefault("failure", FAILURE)
    return Ending(EndingKind(kind), job.pk, job.fence if fence is None else fence, **facts)


def end(connection, *endings, worker_id=WORKER):
    return settle(connection, worker_id=worker_id, endings=endings)


def states(settled):
    return {id: written.state for id, written in settled.written.items()}


def fresh(job):
    return type(job).objects.get(pk=job.pk)


def columns(job):
    """Return every column of a row, to tell whether anything at all was written."""
    return type(job).objects.filter(pk=job.pk).values().first()


def lock(connection, job):
    """Lock a job's row until the caller's transaction ends."""
    connection.execute(load("lock_job"), {"id": job.pk})
