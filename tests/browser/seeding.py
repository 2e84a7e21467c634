"""A queue in which everything is to be seen: jobs in every state, a paused queue, a silent worker."""

from __future__ import annotations

from typing import Any

from pgqueue.models import Job
from tests.factories import (
    ApprovalRequestFactory,
    AttemptFactory,
    BulkActionFactory,
    BulkItemFactory,
    EffectFactory,
    JobFactory,
    JobPayloadFactory,
    LimitFactory,
    MinuteStatFactory,
    OperatorActionFactory,
    QueueFactory,
    WorkerFactory,
    from_now,
)

ERROR = "shop.errors.CardDeclined"
TASK = "shop.tasks.charge_card"


def seed() -> dict[str, Any]:
    """Make the rows and return those that a test goes to, by name."""
    worker = WorkerFactory(host="app-1", queues=["payments", "emails"])
    silent = WorkerFactory(host="app-2", heartbeat_at=from_now(-74))
    QueueFactory(name="payments")
    queue = QueueFactory(name="emails", paused=True, pause_reason="SMTP provider is down")
    dead = [
        JobFactory(dead=True, task=TASK, queue="payments", last_error_class=ERROR, last_error="insufficient funds")
        for _ in range(3)
    ]
    for number, ago in enumerate((300, 200, 100), start=1):
        AttemptFactory(
            job_id=dead[0].pk, number=number, started_at=from_now(-ago), ended_at=from_now(5 - ago), error_class=ERROR
        )
    Job.objects.filter(pk=dead[0].pk).update(created_at=from_now(-400))
    JobPayloadFactory(job_id=dead[0].pk, kwargs={"order": 5531})
    running = JobFactory(running=True, task=TASK, queue="payments", worker_id=worker.pk, lease_until=from_now(900))
    JobFactory(running=True, task=TASK, queue="payments", worker_id=silent.pk, lease_until=from_now(48))
    unknown = JobFactory(
        unknown=True, task=TASK, queue="payments", created_at=from_now(-2510), claimed_at=from_now(-2500)
    )
    AttemptFactory(
        job_id=unknown.pk,
        fence=unknown.fence,
        outcome="lost",
        stage="outcome_unknown",
        error_class=None,
        message=None,
        claimed_at=from_now(-2500),
        started_at=from_now(-2500),
        ended_at=from_now(-2440),
    )
    EffectFactory(job_id=unknown.pk, fence=unknown.fence, name="charge", called_at=from_now(-2490))
    for traits in (
        {},
        {"future": True},
        {"retrying": True},
        {"paused": True},
        {"succeeded": True},
        {"cancelled": True},
    ):
        JobFactory(task="shop.tasks.send_mail", queue="emails", **traits)
    LimitFactory(id="queue:payments", max_running=20)
    LimitFactory(id="tenant:acme", paused=True)
    OperatorActionFactory(verb="pause_queue", target_kind="queue", target_id="emails", reason="SMTP provider is down")
    bulk = BulkActionFactory(size=3, state="done", reason="provider is back")
    for job, outcome in zip(dead, ("applied", "changed", "busy"), strict=True):
        BulkItemFactory(bulk_id=bulk.pk, job_id=job.pk, outcome=outcome, version_found=3)
    under_way = BulkActionFactory(
        size=30, state="running", reason="provider is back", started_by_name="op1", ticket="OPS-415"
    )
    for number in range(12):
        BulkItemFactory(bulk_id=under_way.pk, job_id=10_000 + number, outcome="applied", version_found=3)
    asked = ApprovalRequestFactory(
        about=dead[1], queue="payments", task=TASK, asked_by="op3", reason="the bank is back", ticket="OPS-412"
    )
    for minute in range(1, 60, 2):
        at = from_now(-60 * minute)
        MinuteStatFactory(
            minute=at, task=TASK, jobs=40 + minute % 7, waits=[5, 20, 15 + minute % 7], runs=[0] * 8 + [40]
        )
        MinuteStatFactory(
            minute=at, task=TASK, jobs=minute % 5 + 1, outcome="dead", error=ERROR, waits=[1], runs=[0, 2]
        )
    return {
        "dead": dead[0],
        "running": running,
        "unknown": unknown,
        "queue": queue,
        "worker": worker,
        "bulk": bulk,
        "under_way": under_way,
        "asked": asked,
    }


def screens(rows: dict[str, Any]) -> dict[str, str]:
    """Return the path of every screen by its name."""
    base = "/admin/pgqueue"
    return {
        "overview": f"{base}/overview/",
        "queues": f"{base}/queue/",
        "queue": f"{base}/queue/emails/change/",
        "jobs": f"{base}/job/",
        "jobs-dead": f"{base}/job/?state=dead",
        "job-dead": f"{base}/job/{rows['dead'].pk}/change/",
        "job-running": f"{base}/job/{rows['running'].pk}/change/",
        "job-unknown": f"{base}/job/{rows['unknown'].pk}/change/",
        "confirm": f"{base}/job/{rows['dead'].pk}/do/requeue/",
        "confirm-typed": f"{base}/job/{rows['running'].pk}/do/break_lease/",
        "limits": f"{base}/limit/",
        "limit": f"{base}/limit/tenant:acme/change/",
        "confirm-limit": f"{base}/limit/tenant:acme/do/set_rate/",
        "reconcile": f"{base}/reconcile/",
        "workers": f"{base}/worker/",
        "worker": f"{base}/worker/{rows['worker'].pk}/change/",
        "bulk-actions": f"{base}/bulkaction/",
        "bulk-action-running": f"{base}/bulkaction/{rows['under_way'].pk}/change/",
        "bulk-action": f"{base}/bulkaction/{rows['bulk'].pk}/change/",
        "approvals": f"{base}/approvalrequest/",
        "approval": f"{base}/approvalrequest/{rows['asked'].pk}/change/",
        "confirm-approval": f"{base}/approvalrequest/{rows['asked'].pk}/do/approve/",
        "audit": f"{base}/operatoraction/",
    }
