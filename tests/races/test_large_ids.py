"""Ids beyond int4, through every statement that takes some."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection

from pgqueue import enqueue_many
from pgqueue.failures import Description, FailureClass
from pgqueue.models import Attempt, Job, JobPayload, OperatorAction
from pgqueue.operations import act
from pgqueue.protocol.claiming import Lease, claim, find_unheard
from pgqueue.protocol.leasing import renew
from pgqueue.protocol.registering import register, send_beat
from pgqueue.protocol.settling import Ending, EndingKind, Failure, settle
from pgqueue.states import Lane, Outcome, State
from pgqueue.takeover import take_over_expired
from tests.testapp.tasks import add

from .conftest import OPERATOR, Connection
from .rows import claimant, expire

pytestmark = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

BEYOND_INT4 = 2**31
FAILURE = Failure(FailureClass.SYSTEM, Description("builtins.RuntimeError", "no", "Traceback"))
SEQUENCES = (
    "pgqueue_fence",
    *(f"pgqueue_{table}_id_seq" for table in ("job", "worker", "attempt", "operatoraction", "operationkey", "effect")),
)


@pytest.fixture(autouse=True)
def _sequences_beyond_int4(transactional_db: None) -> Iterator[None]:
    """Fences stay there: one must be larger than any before."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, nextval(name::regclass) FROM unnest(%s::text[]) AS name", [list(SEQUENCES)])
        before = dict(cursor.fetchall())
        cursor.execute(
            "SELECT setval(name::regclass, %s + nextval(name::regclass)) FROM unnest(%s::text[]) AS name",
            [BEYOND_INT4, list(SEQUENCES)],
        )
    yield
    with connection.cursor() as cursor:
        for name in set(SEQUENCES) - {"pgqueue_fence"}:
            cursor.execute("SELECT setval(%s::regclass, %s)", [name, before[name]])


@pytest.fixture
def worker_id(queue_connection: Connection) -> int:
    return register(
        queue_connection,
        host="host",
        pid=1,
        release="0",
        slots=1,
        lease_seconds=60,
        queues=None,
        excluded=(),
        tasks=(),
    )


def claim_all(queue_connection: Connection, worker_id: int) -> list[Lease]:
    return [lease for lane in Lane for lease in claim(queue_connection, claimant(worker_id), lane=lane, limit=10)]


def test_jobs_live_from_enqueue_to_ending(queue_connection: Connection, worker_id: int) -> None:
    assert worker_id > BEYOND_INT4
    ids = [
        int(add.enqueue(1).id),
        int(add.using(operation_key="k").enqueue(2).id),
        int(add.using(shard_key="a").enqueue(3).id),
        *enqueue_many(add.bind(number) for number in range(3)),
    ]
    assert min(ids) > BEYOND_INT4
    assert int(add.using(operation_key="k").enqueue(2).id) == ids[1]
    assert set(JobPayload.objects.values_list("job_id", flat=True)) == set(ids)

    leases = claim_all(queue_connection, worker_id)
    assert {lease.id for lease in leases} == set(ids)
    assert min(lease.fence for lease in leases) > BEYOND_INT4
    assert {lease.worker_id for lease in leases} == {worker_id}
    assert find_unheard(queue_connection, worker_id=worker_id, held_ids=ids[1:]) == [
        (lease.id, lease.fence) for lease in leases if lease.id == ids[0]
    ]
    held = {lease.id: lease.fence for lease in leases}
    assert renew(queue_connection, worker_id=worker_id, held=held, lease_seconds=60).renewed == set(ids)
    send_beat(queue_connection, worker_id=worker_id, draining=True)

    kinds = [EndingKind.COMPLETE, EndingKind.RETRY, EndingKind.BURY, EndingKind.RELEASE]
    endings = [
        Ending(kind, id, held[id], failure=FAILURE if kind in (EndingKind.RETRY, EndingKind.BURY) else None)
        for id, kind in zip(ids, kinds, strict=False)
    ]
    settled = settle(queue_connection, worker_id=worker_id, endings=endings)
    states = [State.SUCCEEDED, State.RETRYING, State.DEAD, State.PENDING]
    assert {id: settled.written[id].state for id in ids[:4]} == dict(zip(ids, states, strict=False))
    again = settle(queue_connection, worker_id=worker_id, endings=endings)
    assert set(again.written) == set(ids[:4])
    assert settle(queue_connection, worker_id=worker_id + 1, endings=endings).lost == endings

    expire(ids[4])
    assert [one.job.id for one in take_over_expired(queue_connection)] == [ids[4]]
    assert set(Attempt.objects.values_list("job_id", flat=True)) == {ids[1], ids[2], ids[4]}


def test_operators_act_on_them(queue_connection: Connection, worker_id: int) -> None:
    id = int(add.enqueue(1).id)
    done = []
    version = 1
    for verb in ("hold", "unhold", "cancel", "requeue", "give_up", "requeue"):
        action = act(
            verb, id, version_seen=version, actor=OPERATOR, reason="a test", idempotency_key=f"{verb}{version}"
        )
        done.append(action.outcome)
        version = action.version_after or version
    [lease] = claim_all(queue_connection, worker_id)
    for verb in ("ask_to_stop", "break_lease"):
        action = act(verb, id, version_seen=lease.version + len(done) - 6, actor=OPERATOR, reason="a test")
        done.append(action.outcome)
    assert done == [Outcome.APPLIED] * 8
    assert Job.objects.get().state == State.UNKNOWN
    assert set(OperatorAction.objects.values_list("target_id", flat=True)) == {str(id)}
    assert OperatorAction.objects.order_by("id")[0].id > BEYOND_INT4
