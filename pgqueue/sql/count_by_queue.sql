-- Count unfinished jobs by queue and state, and those that ended within five minutes, for people. No locks; waiting
-- rows beyond the cap are not looked at. Lanes are named because the indexes of waiting rows are.
-- Returns: queue, state or `ended`, jobs, seconds since the oldest due row became due.
WITH live AS MATERIALIZED (
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
            WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2)
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
    extract(epoch FROM statement_timestamp() - min(live.run_at))::float8
FROM live
GROUP BY live.queue, live.state
UNION ALL
SELECT stat.queue, 'ended', sum(stat.jobs)::bigint, NULL
FROM pgqueue_minutestat AS stat
WHERE stat.minute > statement_timestamp() - interval '5 minutes'
GROUP BY stat.queue
