"""What the database says about one campaign. Reads only; plain SQL, so that it needs no Django."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import psycopg

from demo_project.ledger import CouponRow, PayoutRow

UNFINISHED = ("pending", "retrying", "running", "probing")


class Progress:
    """Reads a loaded campaign's jobs and coupons."""

    def __init__(self, connection: psycopg.Connection, *, campaign_id: int) -> None:
        self._connection = connection
        self._campaign_id = campaign_id
        # Looked up once: no index serves this question, and the site's database may hold millions of jobs.
        self._job_ids = self._find_jobs()

    @property
    def key_prefix(self) -> str:
        return f"coupon:{self._campaign_id}:"

    @property
    def payout_prefix(self) -> str:
        return f"payout:{self._campaign_id}:"

    @property
    def jobs(self) -> int:
        return len(self._job_ids)

    def count_new_jobs(self) -> int:
        """Return how many jobs the campaign got since the first look."""
        return len(self._find_jobs()) - self.jobs

    def states(self) -> Counter[str]:
        """Count the jobs in each state; `probing` are those that are unknown and about to be asked for."""
        rows = self._rows(
            """
            SELECT CASE WHEN probe_at IS NULL THEN state ELSE 'probing' END, count(*)
            FROM pgqueue_job WHERE id = ANY(%(ids)s) GROUP BY 1
            """,
            ids=self._job_ids,
        )
        return Counter(dict(rows))

    def lease_seconds_left(self, pids: list[int]) -> int:
        """Return how long the longest lease of these workers lasts, 0 when they hold none."""
        seconds = self._column(
            """
            SELECT extract(epoch FROM max(job.lease_until) - statement_timestamp())::float8
            FROM pgqueue_job AS job JOIN pgqueue_worker AS worker ON worker.id = job.worker_id
            WHERE job.id = ANY(%(ids)s) AND job.state = 'running' AND worker.pid = ANY(%(pids)s)
            """,
            ids=self._job_ids,
            pids=pids,
        )[0]
        return max(0, math.ceil(seconds or 0))

    def taken_over(self) -> list[int]:
        """Return the jobs that lost a lease, in the order of their ids."""
        return self._column(
            "SELECT id FROM pgqueue_job WHERE id = ANY(%(ids)s) AND lease_losses > 0 ORDER BY id",
            ids=self._job_ids,
        )

    def unsuccessful(self) -> list[tuple[int, str, str]]:
        """Return id, state and last error of the jobs that neither succeeded nor wait for a person."""
        return self._rows(
            """
            SELECT id, state, coalesce(last_error, '') FROM pgqueue_job
            WHERE id = ANY(%(ids)s) AND state <> 'succeeded' AND (state <> 'unknown' OR probe_at IS NOT NULL)
            ORDER BY id
            """,
            ids=self._job_ids,
        )

    def coupons(self) -> list[CouponRow]:
        rows = self._rows(
            "SELECT user_id, sms_message_id FROM campaign_coupon WHERE campaign_id = %(campaign)s",
            campaign=self._campaign_id,
        )
        return [CouponRow(*row) for row in rows]

    def payouts(self) -> list[PayoutRow]:
        """Return the campaign's payouts and credits, each with its job, in the order of the jobs."""
        rows = self._rows(
            """
            SELECT job.id, recipient.user_id, split_part(job.task, '.', -1), job.recovery, job.state, payout.payment_id,
                (SELECT count(*) FROM campaign_credit AS credit
                    WHERE credit.campaign_id = %(campaign)s AND credit.user_id = recipient.user_id)
            FROM pgqueue_job AS job
            JOIN campaign_recipient AS recipient ON recipient.user_id::text = split_part(job.operation_key, ':', 3)
            LEFT JOIN campaign_payout AS payout
                ON payout.campaign_id = %(campaign)s AND payout.user_id = recipient.user_id
            WHERE job.id = ANY(%(ids)s) AND starts_with(job.operation_key, %(prefix)s)
            ORDER BY job.id
            """,
            campaign=self._campaign_id,
            ids=self._job_ids,
            prefix=self.payout_prefix,
        )
        return [PayoutRow(*row) for row in rows]

    def _find_jobs(self) -> list[int]:
        return self._column(
            """
            SELECT id FROM pgqueue_job
            WHERE starts_with(operation_key, %(coupon)s) OR starts_with(operation_key, %(payout)s)
            """,
            coupon=self.key_prefix,
            payout=self.payout_prefix,
        )

    def _column(self, query: str, **values: object) -> list[Any]:
        return [row[0] for row in self._rows(query, **values)]

    def _rows(self, query: str, **values: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, values).fetchall()
