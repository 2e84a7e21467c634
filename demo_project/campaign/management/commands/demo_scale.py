"""Fill the table of jobs with finished rows, and measure the console's screens on it."""

from __future__ import annotations

import time
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from pgqueue.admin.keyset import Order
from pgqueue.admin.survey import forget
from pgqueue.models import Job

FILL = """
    INSERT INTO pgqueue_job (
        created_at, run_at, settled_by, fence, version, claimed_at, started_at, finished_at, priority, lane, attempts,
        max_attempts, lease_losses, unknown_effects, state, queue, task, recovery, stage, last_error_class
    )
    SELECT
        at, at, 1, n, 3, at, at, at, 0, 0, 1, 8, 0, 0,
        CASE WHEN n %% 2000 = 0 THEN 'dead' ELSE 'succeeded' END,
        'q' || n %% 4, 'shop.tasks.send_mail', 'undeclared', 'not_called',
        CASE WHEN n %% 2000 = 0 THEN 'shop.errors.CardDeclined' END
    FROM (
        SELECT n, statement_timestamp() - make_interval(secs => %s - n) AS at
        FROM generate_series(1, %s) AS n
    ) AS finished
"""
BATCH = 500_000
DEEP = 0.9


class Command(BaseCommand):
    help = "Add finished jobs up to --rows, then open every screen and print its queries and its time in the database."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the size."""
        parser.add_argument("--rows", type=int, default=1_000_000)

    def handle(self, *, rows: int, **options: Any) -> None:
        """Fill, then measure."""
        first, last = self._fill(rows)
        client = Client(headers={"host": "localhost"})
        user, _made = get_user_model().objects.get_or_create(username="scale", is_staff=True, is_superuser=True)
        client.force_login(user)
        deep = Order(("-id",)).mark(Job(pk=int(last - DEEP * (last - first))))
        self.stdout.write(f"{'screen':44} {'queries':>7} {'db ms':>8} {'all ms':>8} {'KiB':>6}")
        for path in _screens(deep, last):
            self.stdout.write(_measured(client, path))

    def _fill(self, rows: int) -> tuple[int, int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pgqueue_job WHERE task = 'shop.tasks.send_mail'")
            left = rows - cursor.fetchone()[0]
            while left > 0:
                count = min(left, BATCH)
                cursor.execute(FILL, [count + 10, count])
                left -= count
                self.stdout.write(f"{rows - left:,} rows")
            cursor.execute("ANALYZE pgqueue_job")
            cursor.execute("SELECT min(id), max(id) FROM pgqueue_job")
            first, last = cursor.fetchone()
        return first, last


def _screens(deep: str, last: int) -> list[str]:
    base = "/admin/pgqueue"
    lists = ("", "?state=dead", "?state=succeeded", "?state=unknown", "?queue=q1", f"?q={last}", "?state=running")
    jobs = [f"{base}/job/{asked}" for asked in (*lists, f"?after={deep}", f"?state=dead&after={deep}")]
    others = [
        f"{base}/{name}/" for name in ("overview", "queue", "reconcile", "worker", "bulkaction", "operatoraction")
    ]
    return [
        *jobs,
        f"{base}/job/?q=error%3Ashop.errors.CardDeclined+state%3Adead",
        f"{base}/job/{last}/change/",
        *others,
    ]


def _measured(client: Client, path: str) -> str:
    client.get(path)
    forget()
    began = time.perf_counter()
    with CaptureQueriesContext(connection) as queries:
        answer = client.get(path)
    spent = (time.perf_counter() - began) * 1000
    ours = [query for query in queries if "pgqueue_" in query["sql"]]
    database = sum(float(query["time"]) for query in ours) * 1000
    size = len(answer.content) // 1024
    shown = path.removeprefix("/admin/pgqueue")
    return f"{shown[:44]:44} {len(ours):>7} {database:>8.0f} {spent:>8.0f} {size:>6}  {answer.status_code}"
