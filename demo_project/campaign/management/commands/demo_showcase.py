"""Rows to look at: jobs in every state, a paused queue, a silent worker."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand
from django.db import transaction
from django.utils import timezone

from pgqueue.models import Job, MinuteStat, Queue, Worker

TASK = "shop.tasks.charge_card"
"""No worker of the demo knows it: what is shown stays as it is."""
ERROR = "shop.errors.CardDeclined"
DEAD = 300
MINUTES = 180


class Command(BaseCommand):
    help = "Add jobs in every state, a paused queue and a silent worker, once."

    def handle(self, **options: Any) -> str:
        """Write the rows, and return what to look at first."""
        with transaction.atomic():
            if not Queue.objects.filter(name="payments").exists():
                _fill(timezone.now())
        return "queue “emails” is paused, a worker is silent, 300 cards were declined"


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
    (worker,) = Worker.objects.bulk_create([_silent_worker(now)])
    Job.objects.bulk_create([_dead(now, number) for number in range(DEAD)])
    Job.objects.bulk_create(
        [
            _job(now, state="succeeded", attempts=1, finished_at=now - timedelta(minutes=5)),
            _job(now, state="cancelled", finished_at=now - timedelta(minutes=9)),
            _job(now, queue="emails", task="shop.tasks.send_mail"),
            _job(now, run_at=now + timedelta(hours=7)),
            _job(now, state="retrying", attempts=2, run_at=now + timedelta(hours=1), last_error_class=ERROR),
            _job(now, state="paused", held_from="pending"),
            _job(
                now,
                state="running",
                worker_id=worker.pk,
                fence=0,
                claimed_at=now - timedelta(minutes=2),
                lease_until=now + timedelta(hours=2),
            ),
        ]
    )
    MinuteStat.objects.bulk_create([stat for minute in range(1, MINUTES) for stat in _stats(now, minute)])


def _job(now: datetime, **given: Any) -> Job:
    usual: dict[str, Any] = {"queue": "payments", "task": TASK, "max_attempts": 5, "version": 2, "recovery": "manual"}
    usual |= {"created_at": now - timedelta(hours=1), "run_at": now - timedelta(minutes=10)}
    return Job(**(usual | given))


def _silent_worker(now: datetime) -> Worker:
    return Worker(
        started_at=now - timedelta(hours=5),
        heartbeat_at=now - timedelta(minutes=3),
        lease_seconds=60.0,
        pid=811,
        slots=10,
        host="app-2",
        version="0",
        queues=["payments"],
        excluded_queues=[],
        tasks=[TASK],
    )


def _dead(now: datetime, number: int) -> Job:
    ended = now - timedelta(seconds=20 * number + 30)
    return _job(
        now,
        state="dead",
        attempts=5,
        claimed_at=ended - timedelta(seconds=1),
        started_at=ended - timedelta(seconds=1),
        finished_at=ended,
        last_error_class=ERROR,
        last_error="The provider does not answer.",
    )


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
