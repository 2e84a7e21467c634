"""The protocol in plain Python and psycopg, for the queue harness: what remains without everything else.

The harness's own sketch (`contestants/proto.py`) has a narrow table of its own. This one works on the shipped table,
with every column, index and constraint, and with the guards of the shipped statements: an ending is fenced by id, fence
and worker and leaves out what has an unknown effect, both pass over locked rows, a claim draws fences and honours
pauses and limits. It has no threads, no signals, no failures, no heartbeat and no Django at run time. Our share of it
is the price of those. `contestants/sketch.py` there is a link to this file.
"""

import os
import sys
from pathlib import Path

from benchlib import Contestant, hit, main

HERE = Path(os.path.realpath(__file__)).parent
sys.path.insert(0, str(HERE))

TASK = "bench_jobs.tasks.noop"
INSERT = """
    INSERT INTO pgqueue_job (
        fence, version, created_at, run_at, priority, lane, attempts, max_attempts, lease_losses, unknown_effects,
        state, queue, task, recovery, stage
    )
    SELECT
        0, 1, statement_timestamp(), statement_timestamp(), 0, 0, 0, 8, 0, 0,
        'pending', 'default', given.task, 'undeclared', 'not_called'
    FROM unnest(%(tasks)s::text[]) AS given (task)
"""
ONE = f"WITH job AS ({INSERT} RETURNING id) SELECT id, pg_notify('sketch', '') FROM job"
MANY = f"WITH job AS ({INSERT} RETURNING id) SELECT array_agg(id), pg_notify('sketch', '') FROM job"
STEP = """
    WITH owned AS MATERIALIZED (
        SELECT mine.id, ending.run_seconds
        FROM unnest(
            %(ids)s::bigint[], %(fences)s::bigint[], %(run_seconds)s::float8[]
        ) AS ending (id, fence, run_seconds)
        CROSS JOIN LATERAL (
            SELECT job.id
            FROM pgqueue_job AS job
            WHERE job.id = ending.id AND job.fence = ending.fence AND job.worker_id = %(worker_id)s::bigint
                AND job.unknown_effects = 0
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS mine
    ),
    completed AS (
        UPDATE pgqueue_job AS job
        SET state = 'succeeded', version = job.version + 1, attempts = job.attempts + 1, worker_id = NULL,
            lease_until = NULL, settled_by = %(worker_id)s::bigint,
            started_at = statement_timestamp() - make_interval(secs => owned.run_seconds),
            finished_at = statement_timestamp()
        FROM owned
        WHERE job.id = owned.id
        RETURNING job.id
    ),
    candidates AS MATERIALIZED (
        SELECT job.id
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 0 AND job.queue = 'default'
            AND job.priority * -1 = 0 AND job.task = %(task)s::text AND job.run_at <= statement_timestamp()
            AND NOT EXISTS (
                SELECT
                FROM pgqueue_queue AS queue
                WHERE queue.name = 'default' AND queue.paused_at IS NOT NULL
            )
            AND NOT EXISTS (
                SELECT
                FROM pgqueue_limit AS bound
                WHERE bound.id IN ('queue:default', 'task:' || %(task)s::text)
            )
        ORDER BY job.run_at, job.id
        LIMIT %(limit)s::int
        FOR NO KEY UPDATE SKIP LOCKED
    ),
    claimed AS (
        UPDATE pgqueue_job AS job
        SET state = 'running', version = job.version + 1, fence = nextval('pgqueue_fence'),
            worker_id = %(worker_id)s::bigint, claimed_at = statement_timestamp(),
            lease_until = statement_timestamp() + make_interval(secs => 60)
        FROM candidates
        WHERE job.id = candidates.id
        RETURNING job.id, job.fence, job.task
    )
    SELECT counted.endings, claimed.id, claimed.fence, claimed.task, payload.args::text, payload.kwargs::text
    FROM (SELECT count(*) AS endings FROM completed) AS counted
    LEFT JOIN claimed ON true
    LEFT JOIN pgqueue_jobpayload AS payload ON payload.job_id = claimed.id
"""
PINS = ("enable_seqscan", "enable_bitmapscan", "enable_hashjoin", "enable_mergejoin", "jit")
TASKS = {TASK: hit}


class Sketch(Contestant):
    """Claims by 500, one thread."""

    name = "the protocol on the shipped table, nothing else"
    package = "psycopg"
    venv = "ours"
    jobs_factor = 5
    unfinished_sql = (
        "select count(*) from (select 1 from pgqueue_job where state in ('pending', 'retrying')"
        " union all select 1 from pgqueue_job where state = 'running') x"
    )
    variants = {"": {"batch": 500}, "b100": {"batch": 100}}

    def setup(self):
        """Make the tables."""
        from contestant import configure

        configure({})
        from django.core.management import call_command

        call_command("migrate", verbosity=0)

    def open(self):
        """Connect, with pinned plans."""
        import psycopg

        self.connection = psycopg.connect("", autocommit=True, prepare_threshold=1)
        for name in PINS:
            self.connection.execute(f"SET {name} = off")
        self.connection.execute("SET plan_cache_mode = force_generic_plan")
        self.cursor = self.connection.cursor(binary=True)

    def one(self):
        """Enqueue one job."""
        self.cursor.execute(ONE, {"tasks": [TASK]}).fetchone()

    def bulk(self, n):
        """Enqueue many, 1,000 a call."""
        for start in range(0, n, 1000):
            self.cursor.execute(MANY, {"tasks": [TASK] * min(1000, n - start)}).fetchone()

    def worker(self):
        """Settle and claim in one statement until killed."""
        self.open()
        self.connection.execute("LISTEN sketch")
        ended = []
        while True:
            rows = self.step(ended)
            ended = []
            if rows[0][1] is None:
                for _ in self.connection.notifies(timeout=5, stop_after=1):
                    pass
                continue
            for _, id, fence, task, _, _ in rows:
                TASKS[task]()
                ended.append((id, fence))

    def step(self, ended):
        """Take one step and return the jobs claimed."""
        params = {"worker_id": 1, "task": TASK, "limit": self.opt["batch"]}
        params["ids"] = "{" + ",".join(str(id) for id, _ in ended) + "}"
        params["fences"] = "{" + ",".join(str(fence) for _, fence in ended) + "}"
        params["run_seconds"] = "{" + ",".join("0" for _ in ended) + "}"
        rows = self.cursor.execute(STEP, params).fetchall()
        if rows[0][0] != len(ended):
            print("lost", len(ended) - rows[0][0])
        return rows


if __name__ == "__main__":
    main(Sketch())
