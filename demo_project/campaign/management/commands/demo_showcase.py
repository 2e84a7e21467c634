"""Rows to look at: jobs in every state, a paused queue, a silent worker, and what waits for a second person."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connection, transaction
from django.utils import timezone

import pgqueue
from pgqueue.models import ApprovalRequest, Attempt, Job, MinuteStat, Queue, Worker

TASK = "shop.tasks.charge_card"
"""No worker of the demo knows it: what is shown stays as it is."""
ERROR = "shop.errors.CardDeclined"
DECLINED = "The bank declined the card: insufficient funds."
DEAD = 300
ATTEMPTS = 5
PAUSES = [timedelta(seconds=2**number) for number in range(1, ATTEMPTS)]
RUN = timedelta(seconds=0.3)
LIVE = 3
"""Others that were claimed once."""
MINUTES = 180


class Command(BaseCommand):
    help = "Add jobs in every state, a paused queue and a silent worker, once."

    def handle(self, **options: Any) -> str:
        """Write the rows, and return what to look at first."""
        with transaction.atomic():
            if not Queue.objects.filter(name="payments").exists():
                _fill(timezone.now())
        return "queue “emails” is paused, a worker is silent, 300 cards were declined, a requeue waits for approval"


def _fill(now: datetime) -> None:
    Queue.objects.bulk_create(
        [
            Queue(name="payments", version=1, created_at=now),
            Queue(
                name="emails",
                version=2,
                created_at=now,
                paused_at=now - timedelta(hours=2),
                paused_by="op1",
                pause_reason="SMTP provider is down, OPS-411",
            ),
        ]
    )
    gone, silent = Worker.objects.bulk_create([_stopped_worker(now), _silent_worker(now)])
    fences = _draw_fences(DEAD * ATTEMPTS + LIVE)
    dead = Job.objects.bulk_create([_dead(now, number, gone, fences) for number in reversed(range(DEAD))])
    Attempt.objects.bulk_create([attempt for job in dead for attempt in _attempts(job)])
    ApprovalRequest.objects.bulk_create([_asked(now, dead[0])])
    Job.objects.bulk_create(_live(now, gone, silent, fences))
    MinuteStat.objects.bulk_create([stat for minute in range(1, MINUTES) for stat in _stats(now, minute)])


def _draw_fences(number: int) -> Iterator[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('pgqueue_fence') FROM generate_series(1, %s)", [number])
        return iter([fence for (fence,) in cursor.fetchall()])


def _live(now: datetime, gone: Worker, silent: Worker, fences: Iterator[int]) -> list[Job]:
    ended, claimed = now - timedelta(minutes=5), now - timedelta(minutes=2)
    ran = {"claimed_at": ended - timedelta(seconds=2), "started_at": ended - timedelta(seconds=2)}
    return [
        _job(now, state="succeeded", settled_by=gone.pk, fence=next(fences), attempts=1, finished_at=ended, **ran),
        _job(now, state="cancelled", finished_at=now - timedelta(minutes=9)),
        _job(now, queue="emails", task="shop.tasks.send_mail"),
        _job(now, run_at=now + timedelta(hours=7)),
        _job(
            now,
            state="retrying",
            attempts=2,
            fence=next(fences),
            run_at=now + timedelta(hours=1),
            last_error_class="shop.errors.GatewayTimeout",
            last_error="The bank did not answer within 10 s.",
        ),
        _job(now, state="paused", held_from="pending"),
        _job(
            now,
            state="running",
            worker_id=silent.pk,
            fence=next(fences),
            claimed_at=claimed,
            lease_until=now + timedelta(minutes=9),
        ),
    ]


def _job(now: datetime, **given: Any) -> Job:
    usual: dict[str, Any] = {"queue": "payments", "task": TASK, "max_attempts": 5, "version": 2, "recovery": "manual"}
    usual |= {"created_at": now - timedelta(hours=1), "run_at": now - timedelta(minutes=10)}
    return Job(**(usual | given))


def _asked(now: datetime, job: Job) -> ApprovalRequest:
    """Return what somebody else has asked for, and whoever looks may approve."""
    return ApprovalRequest(
        created_at=now - timedelta(minutes=12),
        expires_at=now + timedelta(days=1),
        verb="requeue",
        target_kind="job",
        target_id=str(job.pk),
        version_seen=job.version,
        queue=job.queue,
        task=job.task,
        asked_by="op1",
        reason="The customer has paid in money",
        ticket="OPS-412",
    )


def _silent_worker(now: datetime) -> Worker:
    """It holds a long lease, so that there is time to look at it."""
    return _worker(now, host="app-2", pid=811, heartbeat_at=now - timedelta(seconds=74))


def _stopped_worker(now: datetime) -> Worker:
    ended = now - timedelta(minutes=4)
    return _worker(now, host="app-1", pid=790, heartbeat_at=ended, stopped_at=ended)


def _worker(now: datetime, **given: Any) -> Worker:
    return Worker(
        started_at=now - timedelta(hours=5),
        lease_seconds=60.0,
        slots=10,
        release=pgqueue.__version__,
        queues=["payments"],
        excluded_queues=[],
        tasks=[TASK],
        **given,
    )


def _dead(now: datetime, number: int, worker: Worker, fences: Iterator[int]) -> Job:
    ended = now - timedelta(seconds=20 * number + 30)
    return _job(
        now,
        state="dead",
        attempts=ATTEMPTS,
        version=1 + 2 * ATTEMPTS,
        settled_by=worker.pk,
        fence=[next(fences) for _ in range(ATTEMPTS)][-1],
        created_at=ended - sum(PAUSES, ATTEMPTS * RUN) - timedelta(seconds=1),
        run_at=ended - RUN,
        claimed_at=ended - RUN,
        started_at=ended - RUN,
        finished_at=ended,
        last_error_class=ERROR,
        last_error=DECLINED,
    )


def _attempts(job: Job) -> Iterator[Attempt]:
    """Return them with growing pauses between, the last as the job's own row tells it."""
    ended = job.finished_at or job.created_at
    for back, pause in enumerate([*reversed(PAUSES), timedelta()]):
        yield Attempt(
            job_id=job.pk,
            number=ATTEMPTS - back,
            fence=job.fence - back,
            worker_id=job.settled_by,
            claimed_at=ended - RUN,
            started_at=ended - RUN,
            ended_at=ended,
            outcome="failed",
            failure_class="system",
            error_class=ERROR,
            message=DECLINED,
        )
        ended -= RUN + pause


def _stats(now: datetime, minute: int) -> list[MinuteStat]:
    at = (now - timedelta(minutes=minute)).replace(second=0, microsecond=0)
    usual: dict[str, Any] = {"minute": at, "queue": "payments", "task": TASK}
    busy = 40 + 15 * (minute % 7)
    waits, runs = [0, 0, busy // 2, busy // 2, minute % 5], [0] * 8 + [busy, minute % 9]
    failed = 3
    stats = [
        MinuteStat(**usual, outcome="succeeded", jobs=busy, waits=waits, runs=runs),
        MinuteStat(**usual, outcome="dead", error=ERROR, jobs=failed, waits=[0, failed], runs=[0] * 9 + [failed]),
    ]
    # The 300 that are dead ended one every twenty seconds.
    return stats if minute <= DEAD // failed else stats[:1]
