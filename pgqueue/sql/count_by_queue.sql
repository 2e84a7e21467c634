-- Count unfinished jobs by queue and state, and those that ended within five minutes, for people. No locks; waiting
-- rows beyond the cap are not looked at, but their queues are found by the walk of `list_queues.sql`. Lanes are named
-- because the indexes of waiting rows are.
-- Returns: queue, state, `ended` or `unlisted` (a queue without a row), jobs, seconds since the oldest due row became
-- due.
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
    WHERE walked.steps < %(most_queues)s::int
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
    WHERE laned.steps < %(most_queues)s::int
),
live AS MATERIALIZED (
    (
        SELECT
            each.queue, each.run_at,
            CASE
                WHEN each.state = 'pending' AND each.run_at > statement_timestamp() THEN 'scheduled'
                ELSE each.state
            END AS state
        FROM (
            SELECT job.queue, job.run_at, job.state
            FROM pgqueue_job AS job
            WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2, 3)
            UNION ALL
            SELECT job.queue, job.run_at, job.state
            FROM pgqueue_job AS job
            WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority <= 100
        ) AS each
        LIMIT %(cap)s::int
    )
    UNION ALL
    (SELECT job.queue, job.run_at, 'running' FROM pgqueue_job AS job WHERE job.state = 'running' LIMIT %(cap)s::int)
    UNION ALL
    (SELECT job.queue, job.run_at, 'unknown' FROM pgqueue_job AS job WHERE job.state = 'unknown' LIMIT %(cap)s::int)
)
SELECT
    live.queue, live.state, count(*),
    (extract(epoch FROM statement_timestamp()) - extract(epoch FROM min(live.run_at)))::float8
FROM live
GROUP BY live.queue, live.state
UNION ALL
SELECT found.queue, 'unlisted', 0, NULL
FROM (
    SELECT walked.queue FROM walked
    UNION
    SELECT laned.queue FROM laned
    UNION
    SELECT live.queue FROM live
) AS found (queue)
WHERE NOT EXISTS (SELECT FROM pgqueue_queue AS queue WHERE queue.name = found.queue)
UNION ALL
SELECT stat.queue, 'ended', sum(stat.jobs)::bigint, NULL
FROM pgqueue_minutestat AS stat
WHERE stat.minute > statement_timestamp() - interval '5 minutes'
GROUP BY stat.queue
