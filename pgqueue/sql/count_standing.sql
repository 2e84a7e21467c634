-- Count unfinished jobs by what they wait for. No locks; waiting rows beyond the cap are not looked at.
-- Returns: standing, number of jobs, and seconds since the longest of them should have gone on (null: not yet).
WITH known (task) AS MATERIALIZED (
    SELECT DISTINCT jsonb_array_elements_text(worker.tasks)
    FROM pgqueue_worker AS worker
    WHERE worker.stopped_at IS NULL
        AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => worker.lease_seconds)
),
stopped (queue) AS MATERIALIZED (
    SELECT queue.name
    FROM pgqueue_queue AS queue
    WHERE queue.paused_at IS NOT NULL AND (queue.paused_until IS NULL OR queue.paused_until > statement_timestamp())
),
busy (queue, shard_key) AS MATERIALIZED (
    SELECT job.queue, job.shard_key
    FROM pgqueue_job AS job
    WHERE job.state = 'running' AND job.shard_key IS NOT NULL
),
waiting AS MATERIALIZED (
    SELECT job.queue, job.task, job.shard_key, job.run_at
    FROM pgqueue_job AS job
    WHERE job.state IN ('pending', 'retrying')
    LIMIT %(cap)s::int
),
standings (standing, since) AS (
    SELECT
        CASE
            WHEN waiting.run_at > statement_timestamp() THEN 'scheduled'
            WHEN waiting.queue IN (SELECT stopped.queue FROM stopped) THEN 'queue_paused'
            WHEN waiting.task NOT IN (SELECT known.task FROM known) THEN 'task_unknown'
            WHEN (waiting.queue, waiting.shard_key) IN (SELECT busy.queue, busy.shard_key FROM busy) THEN 'key_busy'
            ELSE 'due'
        END,
        waiting.run_at
    FROM waiting
    UNION ALL
    SELECT
        CASE WHEN job.lease_until > statement_timestamp() THEN 'leased' ELSE 'lease_expired' END, job.lease_until
    FROM pgqueue_job AS job
    WHERE job.state = 'running'
    UNION ALL
    SELECT 'held', NULL
    FROM pgqueue_job AS job
    WHERE job.state = 'paused'
    UNION ALL
    SELECT CASE WHEN job.probe_at IS NULL THEN 'needs_a_person' ELSE 'probed' END, NULL
    FROM pgqueue_job AS job
    WHERE job.state = 'unknown'
)
SELECT
    standings.standing,
    count(*) AS jobs,
    NULLIF(GREATEST(extract(epoch FROM statement_timestamp() - min(standings.since)), 0), 0)::float8 AS overdue_seconds
FROM standings
GROUP BY standings.standing
ORDER BY standings.standing
