"""Rows in every legal shape, for tests. Instants are the database's, fences come from its sequence."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import factory
from django.db import models
from django.db.models import Func, Value
from django.db.models.functions import Now

from pgqueue.models import (
    ApprovalRequest,
    Attempt,
    BulkAction,
    BulkItem,
    Effect,
    Job,
    JobPayload,
    Limit,
    MinuteStat,
    OperationKey,
    OperatorAction,
    Probe,
    Queue,
    Window,
    Worker,
)
from pgqueue.states import AttemptOutcome, Lane, Outcome, Recovery, Stage, State

TASK = "tests.testapp.tasks.add"
ERROR_CLASS = "builtins.RuntimeError"
WORKER = -101
"""A worker that no process of a test is ever registered as."""


def from_now(seconds: float) -> Any:
    """Return an instant of the database's clock; negative is past."""
    return Now() + timedelta(seconds=seconds)


def next_fence() -> Func:
    """Draw from the fence sequence, as a claim does."""
    return Func(Value("pgqueue_fence"), function="nextval", output_field=models.BigIntegerField())


class RowFactory(factory.django.DjangoModelFactory):
    """Insert, then read back what the database made of expressions."""

    class Meta:
        abstract = True

    @classmethod
    def _create(cls, model_class: type[models.Model], *args: Any, **kwargs: Any) -> models.Model:
        row = super()._create(model_class, *args, **kwargs)
        row.refresh_from_db()
        return row


class JobFactory(RowFactory):
    """A pending job, due since a second ago; traits give it every other state."""

    class Meta:
        model = Job

    class Params:
        retrying = factory.Trait(
            state=State.RETRYING,
            version=3,
            attempts=1,
            fence=factory.LazyFunction(next_fence),
            settled_by=WORKER,
            claimed_at=factory.LazyFunction(lambda: from_now(-20)),
            started_at=factory.LazyFunction(lambda: from_now(-20)),
            last_error_class=ERROR_CLASS,
            last_error="no",
        )
        running = factory.Trait(
            state=State.RUNNING,
            version=2,
            fence=factory.LazyFunction(next_fence),
            worker_id=WORKER,
            claimed_at=factory.LazyFunction(lambda: from_now(-1)),
            lease_until=factory.LazyFunction(lambda: from_now(60)),
        )
        expired = factory.Trait(
            running=True,
            claimed_at=factory.LazyFunction(lambda: from_now(-61)),
            lease_until=factory.LazyFunction(lambda: from_now(-1)),
        )
        stop_requested = factory.Trait(
            running=True, version=3, stop_requested_at=factory.LazyFunction(lambda: from_now(-1))
        )
        paused = factory.Trait(state=State.PAUSED, version=2, held_from=State.PENDING)
        unknown = factory.Trait(
            state=State.UNKNOWN,
            version=3,
            recovery=Recovery.MANUAL,
            unknown_effects=1,
            fence=factory.LazyFunction(next_fence),
            lease_losses=1,
            lane=Lane.ALONE,
            claimed_at=factory.LazyFunction(lambda: from_now(-61)),
        )
        replaying = factory.Trait(
            retrying=True,
            recovery=Recovery.IDEMPOTENT,
            unknown_effects=1,
        )
        probing = factory.Trait(
            unknown=True, recovery=Recovery.PROBE, probe_at=factory.LazyFunction(lambda: from_now(30))
        )
        ended = factory.Trait(
            version=3,
            attempts=1,
            fence=factory.LazyFunction(next_fence),
            settled_by=WORKER,
            claimed_at=factory.LazyFunction(lambda: from_now(-20)),
            started_at=factory.LazyFunction(lambda: from_now(-20)),
            finished_at=factory.LazyFunction(lambda: from_now(-10)),
        )
        succeeded = factory.Trait(ended=True, state=State.SUCCEEDED)
        dead = factory.Trait(ended=True, state=State.DEAD, attempts=8, last_error_class=ERROR_CLASS, last_error="no")
        cancelled = factory.Trait(
            state=State.CANCELLED, version=2, finished_at=factory.LazyFunction(lambda: from_now(-10))
        )
        future = factory.Trait(run_at=factory.LazyFunction(lambda: from_now(3600)))
        tenanted = factory.Trait(tenant="acme", lane=Lane.LANED)
        using = factory.Trait(resource="printer", lane=Lane.LANED)
        strict = factory.Trait(keyed=True, blocks_key=True)
        keyed = factory.Trait(shard_key="customer:7", lane=Lane.LANED)
        alone = factory.Trait(lease_losses=1, lane=Lane.ALONE)
        isolated = factory.Trait(lease_losses=1, lane=Lane.ISOLATED)

    created_at = factory.LazyFunction(lambda: from_now(-1))
    run_at = factory.LazyFunction(lambda: from_now(-1))
    queue = "default"
    task = TASK
    max_attempts = 8
    unknown_effects = 0
    stage = factory.LazyAttribute(lambda job: Stage.OUTCOME_UNKNOWN if job.unknown_effects else Stage.NOT_CALLED)
    replay_until = factory.LazyAttribute(lambda job: from_now(3600) if job.unknown_effects else None)


LEGAL = (
    {},
    {"isolated": True},
    {"future": True},
    {"retrying": True},
    {"replaying": True},
    {"running": True},
    {"running": True, "unknown_effects": 1, "stage": Stage.OUTCOME_UNKNOWN, "recovery": Recovery.MANUAL},
    {"expired": True},
    {"stop_requested": True},
    {"expired": True, "stop_requested": True},
    {"paused": True},
    {"paused": True, "held_from": State.RETRYING, "attempts": 1},
    {"unknown": True},
    {"probing": True},
    {"succeeded": True},
    {"dead": True},
    {"cancelled": True},
    {"tenanted": True},
    {"keyed": True},
    {"tenanted": True, "keyed": True},
    {"using": True},
    {"strict": True, "paused": True},
    {"running": True, "keyed": True},
    {"alone": True},
    {"retrying": True, "keyed": True, "alone": True},
    {"expired": True, "keyed": True, "alone": True},
)
"""Combinations of traits, each a row that the queue itself can make."""


class JobPayloadFactory(RowFactory):
    """Arguments of a job: `JobPayloadFactory(job_id=job.id)`."""

    class Meta:
        model = JobPayload

    args = factory.LazyFunction(lambda: [1, 2])
    kwargs = None
    trace = None


class OperationKeyFactory(RowFactory):
    """A spent key."""

    class Meta:
        model = OperationKey

    job_id = factory.Sequence(lambda n: 900_000 + n)
    created_at = factory.LazyFunction(Now)
    task = TASK
    key = factory.Sequence(lambda n: f"key:{n}")
    digest = "0" * 64


class WindowFactory(RowFactory):
    """A window that is open."""

    class Meta:
        model = Window

    job_id = factory.Sequence(lambda n: 900_000 + n)
    created_at = factory.LazyFunction(Now)
    ends_at = factory.LazyFunction(lambda: from_now(60))
    task = TASK
    key = factory.Sequence(lambda n: f"key:{n}")


class AttemptFactory(RowFactory):
    """A failed attempt."""

    class Meta:
        model = Attempt

    job_id = factory.Sequence(lambda n: 900_000 + n)
    fence = factory.LazyFunction(next_fence)
    worker_id = WORKER
    claimed_at = factory.LazyFunction(lambda: from_now(-20))
    started_at = factory.LazyFunction(lambda: from_now(-20))
    ended_at = factory.LazyFunction(lambda: from_now(-10))
    number = 1
    outcome = AttemptOutcome.FAILED
    failure_class = "system"
    error_class = ERROR_CLASS
    message = "no"


class EffectFactory(RowFactory):
    """A call whose outcome is not known."""

    class Meta:
        model = Effect

    class Params:
        past = factory.Trait(
            first_called_at=factory.LazyFunction(lambda: from_now(-600)),
            called_at=factory.LazyFunction(lambda: from_now(-600)),
            deadline_at=factory.LazyFunction(lambda: from_now(-300)),
        )

    job_id = factory.Sequence(lambda n: 900_000 + n)
    fence = factory.LazyFunction(next_fence)
    first_called_at = factory.LazyFunction(lambda: from_now(-5))
    called_at = factory.LazyFunction(lambda: from_now(-5))
    deadline_at = factory.LazyFunction(lambda: from_now(295))
    replay_until = factory.LazyFunction(lambda: from_now(86_000))
    attempt = 1
    name = "sms"
    stage = Stage.OUTCOME_UNKNOWN
    operation_key = factory.LazyAttribute(lambda effect: f"job:{effect.job_id}:{effect.name}")


class ProbeFactory(RowFactory):
    """A question that was not answered."""

    class Meta:
        model = Probe

    job_id = factory.Sequence(lambda n: 900_000 + n)
    fence = factory.LazyFunction(next_fence)
    worker_id = WORKER
    asked_at = factory.LazyFunction(Now)
    effect = "sms"


class QueueFactory(RowFactory):
    """A queue that somebody has acted on."""

    class Meta:
        model = Queue

    class Params:
        paused = factory.Trait(
            paused_at=factory.LazyFunction(lambda: from_now(-5)), paused_by="ada", pause_reason="gateway down"
        )
        lapsed = factory.Trait(paused=True, paused_until=factory.LazyFunction(lambda: from_now(-1)))
        paused_for_now = factory.Trait(paused=True, paused_until=factory.LazyFunction(lambda: from_now(60)))

    name = factory.Sequence(lambda n: f"queue{n}")
    version = 1
    created_at = factory.LazyFunction(Now)


class LimitFactory(RowFactory):
    """What bounds the jobs of a tenant."""

    class Meta:
        model = Limit

    class Params:
        paused = factory.Trait(
            paused_at=factory.LazyFunction(lambda: from_now(-5)), paused_by="ada", pause_reason="gateway down"
        )
        lapsed = factory.Trait(paused=True, paused_until=factory.LazyFunction(lambda: from_now(-1)))
        one_at_a_time = factory.Trait(max_running=1)
        spent = factory.Trait(
            rate_per_second=0.001, burst=1, tokens=0.0, refilled_at=factory.LazyFunction(lambda: from_now(0))
        )
        fresh = factory.Trait(
            rate_per_second=0.001, burst=3, tokens=3.0, refilled_at=factory.LazyFunction(lambda: from_now(0))
        )

    id = factory.Sequence(lambda n: f"tenant:tenant{n}")
    version = 1
    created_at = factory.LazyFunction(Now)


class WorkerFactory(RowFactory):
    """A worker process that is alive; `silent` has not been heard for two leases."""

    class Meta:
        model = Worker

    started_at = factory.LazyFunction(lambda: from_now(-60))
    heartbeat_at = factory.LazyFunction(Now)
    lease_seconds = 60.0
    pid = factory.Sequence(lambda n: 1_000 + n)
    slots = 10
    host = "host-1"
    release = "0"
    queues = None
    excluded_queues = factory.LazyFunction(list)
    tasks = factory.LazyFunction(lambda: [TASK])

    class Params:
        silent = factory.Trait(heartbeat_at=factory.LazyFunction(lambda: from_now(-120)))
        stopped = factory.Trait(stopped_at=factory.LazyFunction(lambda: from_now(-5)))
        asked = factory.Trait(drain_requested_at=factory.LazyFunction(lambda: from_now(-5)))


class OperatorActionFactory(RowFactory):
    """An applied action."""

    class Meta:
        model = OperatorAction

    created_at = factory.LazyFunction(Now)
    version_seen = 1
    version_found = 1
    version_after = 2
    verb = "hold"
    target_kind = "job"
    target_id = "1"
    outcome = Outcome.APPLIED
    actor_name = "ada"
    reason = "a test"


class BulkActionFactory(RowFactory):
    """A frozen set of nothing yet."""

    class Meta:
        model = BulkAction

    created_at = factory.LazyFunction(Now)
    size = 1
    verb = "requeue"
    actor_name = "ada"
    filter = "state: dead"


class BulkItemFactory(RowFactory):
    """One job of a frozen set: `BulkItemFactory(bulk_id=bulk.pk, job_id=job.pk)`."""

    class Meta:
        model = BulkItem

    version_seen = 3
    position = factory.Sequence(lambda n: n + 1)


class ApprovalRequestFactory(RowFactory):
    """A requeue of a dead job that waits for a second person; traits of `about` give the job another shape."""

    class Meta:
        model = ApprovalRequest
        exclude = ("about",)

    class Params:
        declined = factory.Trait(state="declined", version=2, decided_by="bob")
        expired = factory.Trait(expires_at=factory.LazyFunction(lambda: from_now(-1)))

    about = factory.SubFactory(JobFactory, dead=True)
    created_at = factory.LazyFunction(lambda: from_now(-60))
    expires_at = factory.LazyFunction(lambda: from_now(3600))
    verb = "requeue"
    target_kind = "job"
    target_id = factory.LazyAttribute(lambda request: str(request.about.pk))
    version_seen = factory.LazyAttribute(lambda request: request.about.version)
    queue = "default"
    task = TASK
    asked_by_id = "0"
    asked_by = "carol"
    reason = "the card works again"


class MinuteStatFactory(RowFactory):
    """One job that succeeded within a minute."""

    class Meta:
        model = MinuteStat

    minute = factory.LazyFunction(lambda: from_now(-60))
    jobs = 1
    queue = "default"
    task = TASK
    outcome = "succeeded"
    waits = factory.LazyFunction(lambda: [1])
    runs = factory.LazyFunction(lambda: [1])
