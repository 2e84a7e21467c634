-- List queues for a filter: those with a row, and those with waiting or running jobs. No locks; each lane is walked
-- from queue to queue by one step of its index, so that a million jobs of one queue cost no more than one.
-- Returns: name; paused_at, paused_until, paused_by, pause_reason of its row; now; how many jobs wait in all, as the
-- table was last analysed. Paused ones first, then by name.
WITH RECURSIVE walked (lane, queue, steps) AS (
    SELECT lanes.lane, first.queue, 1
    FROM (VALUES (0::smallint), (2::smallint), (3::smallint)) AS lanes (lane)
    CROSS JOIN LATERAL (
        SELECT job.queue
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2, 3) AND job.lane = lanes.lane
        ORDER BY job.queue
        LIMIT 1
    ) AS first
    UNION ALL
    SELECT walked.lane, next.queue, walked.steps + 1
    FROM walked
    CROSS JOIN LATERAL (
        SELECT job.queue
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2, 3) AND job.lane = walked.lane
            AND job.queue > walked.queue
        ORDER BY job.queue
        LIMIT 1
    ) AS next
    WHERE walked.steps < %(most)s::int
),
laned (queue, steps) AS (
    (
        SELECT job.queue, 1
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority >= -100
        ORDER BY job.queue
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue, laned.steps + 1
    FROM laned
    CROSS JOIN LATERAL (
        SELECT job.queue
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority >= -100
            AND job.queue > laned.queue
        ORDER BY job.queue
        LIMIT 1
    ) AS next
    WHERE laned.steps < %(most)s::int
),
named (name) AS MATERIALIZED (
    SELECT queue.name FROM pgqueue_queue AS queue
    UNION
    SELECT walked.queue FROM walked
    UNION
    SELECT laned.queue FROM laned
    UNION
    (SELECT job.queue FROM pgqueue_job AS job WHERE job.state = 'running' LIMIT %(cap)s::int)
)
SELECT
    named.name, queue.paused_at, queue.paused_until, queue.paused_by, queue.pause_reason, statement_timestamp() AS now,
    (
        SELECT index.reltuples::bigint FROM pg_class AS index WHERE index.oid = to_regclass('pgqueue_job_waiting')
    ) AS waiting_estimate
FROM named
LEFT JOIN pgqueue_queue AS queue ON queue.name = named.name
ORDER BY queue.paused_at IS NULL, named.name
LIMIT %(most)s::int
