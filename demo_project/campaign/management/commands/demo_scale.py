"""Fill the table of jobs with finished rows and 5,000 live ones, and measure the console's screens on it."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from demo_project.campaign.measuring import HEADING, measure

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
LIVE = """
    INSERT INTO pgqueue_job (
        created_at, run_at, fence, version, claimed_at, priority, lane, attempts, max_attempts, lease_losses,
        unknown_effects, state, queue, task, recovery, stage, last_error_class, worker_id, lease_until
    )
    SELECT
        statement_timestamp(), statement_timestamp() + make_interval(secs => n - 3000), n, 2,
        CASE WHEN state IN ('running', 'unknown') THEN statement_timestamp() END, 0, 0,
        0, 8, 0, 0, state, 'q' || n % 4, 'shop.tasks.charge_card', 'manual', 'not_called', NULL,
        CASE WHEN state = 'running' THEN 1 END,
        CASE WHEN state = 'running' THEN statement_timestamp() + interval '1 hour' END
    FROM (
        SELECT n, CASE
            WHEN n <= 100 THEN 'running' WHEN n <= 300 THEN 'unknown' WHEN n <= 1000 THEN 'retrying' ELSE 'pending'
        END AS state
        FROM generate_series(1, 5000) AS n
        WHERE NOT EXISTS (SELECT FROM pgqueue_job WHERE task = 'shop.tasks.charge_card')
    ) AS live
"""
BATCH = 500_000


class Command(BaseCommand):
    help = "Add finished jobs up to --rows, then open every screen and print its queries and its time in the database."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the size, and whether to fail for a screen that costs too much."""
        parser.add_argument("--rows", type=int, default=1_000_000)
        parser.add_argument(
            "--check",
            type=float,
            metavar="FACTOR",
            help="Fail where a screen takes more queries than it may, or so many times the milliseconds that it may.",
        )

    def handle(self, *, rows: int, check: float | None, **options: Any) -> None:
        """Fill, then measure."""
        first, last = self._fill(rows)
        user, _made = get_user_model().objects.get_or_create(username="scale", is_staff=True, is_superuser=True)
        self.stdout.write(HEADING)
        excess = []
        for cost in measure(user, first=first, last=last):
            self.stdout.write(str(cost))
            excess += [] if check is None else cost.excess(factor=check)
        if excess:
            raise CommandError("These cost too much:\n" + "\n".join(excess))

    def _fill(self, rows: int) -> tuple[int, int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pgqueue_job WHERE task = 'shop.tasks.send_mail'")
            left = rows - cursor.fetchone()[0]
            while left > 0:
                count = min(left, BATCH)
                cursor.execute(FILL, [count + 10, count])
                left -= count
                self.stdout.write(f"{rows - left:,} rows")
            cursor.execute("SELECT min(id), max(id) FROM pgqueue_job")
            first, last = cursor.fetchone()
            cursor.execute(LIVE)
            cursor.execute("ANALYZE pgqueue_job")
        return first, last
