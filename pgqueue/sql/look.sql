-- Look what there is to do and until when to sleep. One statement, no locks: an idle worker sends nothing else.
-- Returns: lanes with a due row in a served queue (3 for a plain one whose queue or task is bound); seconds to the
-- next future row, or to the next token of a rate that has none left; seconds to the next expiry of a lease
-- (negative: expired), null where there is none; names of all queues with waiting jobs.
WITH RECURSIVE waiting (lane, queue) AS (
    SELECT lanes.lane, (
        SELECT min(job.queue)
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2) AND job.lane = lanes.lane
    )
    FROM (VALUES (0::smallint), (2::smallint)) AS lanes (lane)
    UNION ALL
    SELECT waiting.lane, (
        SELECT min(job.queue)
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2) AND job.lane = waiting.lane
            AND job.queue > waiting.queue
    )
    FROM waiting
    WHERE waiting.queue IS NOT NULL
),
laned (queue) AS (
    SELECT min(job.queue)
    FROM pgqueue_job AS job
    WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority >= -100
    UNION ALL
    SELECT (
        SELECT min(job.queue)
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority >= -100
            AND job.queue > laned.queue
    )
    FROM laned
    WHERE laned.queue IS NOT NULL
),
found (lane, queue) AS (
    SELECT waiting.lane, waiting.queue FROM waiting
    UNION ALL
    SELECT 1::smallint, laned.queue FROM laned
),
served (lane, queue) AS (
    SELECT waiting.lane, waiting.queue
    FROM found AS waiting
    WHERE waiting.queue IS NOT NULL
        AND (%(queues)s::text[] IS NULL OR waiting.queue = ANY (%(queues)s::text[]))
        AND waiting.queue <> ALL (%(excluded)s::text[])
        AND NOT EXISTS (
            SELECT
            FROM pgqueue_queue AS paused
            WHERE paused.name = waiting.queue
                AND paused.paused_at IS NOT NULL
                AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
        )
),
levels (lane, queue, priority) AS (
    SELECT served.lane, served.queue, (
        SELECT max(job.priority)
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2) AND job.lane = served.lane
            AND job.queue = served.queue
    )
    FROM served
    WHERE served.lane <> 1
    UNION ALL
    SELECT levels.lane, levels.queue, (
        SELECT max(job.priority)
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2) AND job.lane = levels.lane
            AND job.queue = levels.queue
            AND job.priority < levels.priority
    )
    FROM levels
    WHERE levels.priority IS NOT NULL
),
groups (lane, queue, priority, task) AS (
    SELECT levels.lane, levels.queue, levels.priority, (
        SELECT min(job.task)
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2) AND job.lane = levels.lane
            AND job.queue = levels.queue
            AND job.priority = levels.priority
    )
    FROM levels
    WHERE levels.priority IS NOT NULL
    UNION ALL
    SELECT groups.lane, groups.queue, groups.priority, (
        SELECT min(job.task)
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2) AND job.lane = groups.lane
                AND job.queue = groups.queue
            AND job.priority = groups.priority AND job.task > groups.task
    )
    FROM groups
    WHERE groups.task IS NOT NULL
),
seen AS MATERIALIZED (
    SELECT
        CASE
            WHEN groups.lane = 0 AND EXISTS (
                SELECT
                FROM pgqueue_limit AS bound
                WHERE bound.id IN ('queue:' || groups.queue, 'task:' || groups.task)
                    AND (
                        bound.max_running IS NOT NULL
                        OR bound.rate_per_second IS NOT NULL
                        OR bound.paused_at IS NOT NULL
                    )
            ) THEN 3
            ELSE groups.lane
        END AS lane,
        (
            SELECT min(job.run_at)
            FROM pgqueue_job AS job
            WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2) AND job.lane = groups.lane
                AND job.queue = groups.queue
                AND job.priority = groups.priority AND job.task = groups.task
        ) AS first_at,
        (
            SELECT min(job.run_at)
            FROM pgqueue_job AS job
            WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2) AND job.lane = groups.lane
                AND job.queue = groups.queue
                AND job.priority = groups.priority AND job.task = groups.task
                AND job.run_at > statement_timestamp()
        ) AS next_at
    FROM groups
    WHERE groups.task = ANY (%(tasks)s::text[])
    UNION ALL
    SELECT
        1,
        (
            SELECT min(job.run_at)
            FROM pgqueue_job AS job
            WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority <= 100
                AND job.queue = served.queue
        ),
        (
            SELECT min(job.run_at)
            FROM pgqueue_job AS job
            WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority <= 100
                AND job.queue = served.queue
                AND job.run_at > statement_timestamp()
        )
    FROM served
    WHERE served.lane = 1
)
SELECT
    ARRAY(SELECT DISTINCT seen.lane FROM seen WHERE seen.first_at <= statement_timestamp()) AS due_lanes,
    LEAST(
        (SELECT extract(epoch FROM min(seen.next_at) - statement_timestamp())::float8 FROM seen),
        (
            SELECT min(
                (1 - bound.tokens) / bound.rate_per_second
                - extract(epoch FROM statement_timestamp() - bound.refilled_at)
            )::float8
            FROM pgqueue_limit AS bound
            WHERE bound.tokens + bound.rate_per_second * extract(epoch FROM statement_timestamp() - bound.refilled_at) < 1
                AND EXISTS (SELECT FROM seen WHERE seen.lane <> 0 AND seen.first_at <= statement_timestamp())
        )
    ) AS next_due_seconds,
    (
        SELECT extract(epoch FROM min(job.lease_until) - statement_timestamp())::float8
        FROM pgqueue_job AS job
        WHERE job.state = 'running'
    ) AS next_expiry_seconds,
    ARRAY(SELECT DISTINCT found.queue FROM found WHERE found.queue IS NOT NULL) AS queues
