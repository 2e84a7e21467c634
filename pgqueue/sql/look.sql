-- Look what there is to do and until when to sleep. One statement, no locks: an idle worker sends nothing else.
-- Returns: lanes with a due row in a served queue; seconds to the next future row; seconds to the next
-- expiry of a lease (negative: expired), null where there is none; names of all queues with waiting jobs.
WITH RECURSIVE waiting (lane, queue) AS (
    SELECT lanes.lane, (
        SELECT min(job.queue)
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = lanes.lane
    )
    FROM (VALUES (0::smallint), (1::smallint), (2::smallint)) AS lanes (lane)
    UNION ALL
    SELECT waiting.lane, (
        SELECT min(job.queue)
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = waiting.lane AND job.queue > waiting.queue
    )
    FROM waiting
    WHERE waiting.queue IS NOT NULL
),
served (lane, queue) AS (
    SELECT waiting.lane, waiting.queue
    FROM waiting
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
        WHERE job.state IN ('pending', 'retrying') AND job.lane = served.lane AND job.queue = served.queue
    )
    FROM served
    UNION ALL
    SELECT levels.lane, levels.queue, (
        SELECT max(job.priority)
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = levels.lane AND job.queue = levels.queue
            AND job.priority < levels.priority
    )
    FROM levels
    WHERE levels.priority IS NOT NULL
),
seen AS MATERIALIZED (
    SELECT
        levels.lane,
        (
            SELECT min(job.run_at)
            FROM pgqueue_job AS job
            WHERE job.state IN ('pending', 'retrying') AND job.lane = levels.lane AND job.queue = levels.queue
                AND job.priority = levels.priority
        ) AS first_at,
        (
            SELECT min(job.run_at)
            FROM pgqueue_job AS job
            WHERE job.state IN ('pending', 'retrying') AND job.lane = levels.lane AND job.queue = levels.queue
                AND job.priority = levels.priority AND job.run_at > statement_timestamp()
        ) AS next_at
    FROM levels
    WHERE levels.priority IS NOT NULL
)
SELECT
    ARRAY(SELECT DISTINCT seen.lane FROM seen WHERE seen.first_at <= statement_timestamp()) AS due_lanes,
    (SELECT extract(epoch FROM min(seen.next_at) - statement_timestamp())::float8 FROM seen) AS next_due_seconds,
    (
        SELECT extract(epoch FROM min(job.lease_until) - statement_timestamp())::float8
        FROM pgqueue_job AS job
        WHERE job.state = 'running'
    ) AS next_expiry_seconds,
    ARRAY(SELECT DISTINCT waiting.queue FROM waiting WHERE waiting.queue IS NOT NULL) AS queues
