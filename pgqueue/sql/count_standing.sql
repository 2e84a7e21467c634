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
running (counts) AS MATERIALIZED (
    SELECT COALESCE(jsonb_object_agg(counted.id, counted.jobs), '{}'::jsonb)
    FROM (
        SELECT named.id, count(*) AS jobs
        FROM pgqueue_job AS job
        CROSS JOIN LATERAL unnest(
            ARRAY[
                'queue:' || job.queue, 'task:' || job.task, 'tenant:' || job.tenant, 'resource:' || job.resource
            ]
        ) AS named (id)
        WHERE job.state = 'running' AND named.id IS NOT NULL
        GROUP BY named.id
    ) AS counted
),
paused (id) AS MATERIALIZED (
    SELECT bound.id
    FROM pgqueue_limit AS bound
    WHERE bound.paused_at IS NOT NULL AND (bound.paused_until IS NULL OR bound.paused_until > statement_timestamp())
),
full_up (id) AS MATERIALIZED (
    SELECT bound.id
    FROM pgqueue_limit AS bound
    CROSS JOIN running
    WHERE bound.max_running <= COALESCE((running.counts ->> bound.id)::int, 0)
),
spent (id) AS MATERIALIZED (
    SELECT bound.id
    FROM pgqueue_limit AS bound
    WHERE pgqueue_tokens(bound.tokens, bound.rate_per_second, bound.burst, bound.refilled_at) < 1
),
blocked (queue, shard_key, id) AS MATERIALIZED (
    SELECT job.queue, job.shard_key, min(job.id)
    FROM pgqueue_job AS job
    WHERE job.blocks_key AND job.state IN ('pending', 'retrying', 'running', 'paused', 'unknown')
    GROUP BY job.queue, job.shard_key
),
waiting AS MATERIALIZED (
    SELECT
        each.queue, each.task, each.shard_key, each.run_at, each.id, 'tenant:' || each.tenant AS tenant_id,
        'resource:' || each.resource AS resource_id, 'task:' || each.task AS task_id, 'queue:' || each.queue AS queue_id
    FROM (
        SELECT job.queue, job.task, job.shard_key, job.run_at, job.id, job.tenant, job.resource
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2)
        UNION ALL
        SELECT job.queue, job.task, job.shard_key, job.run_at, job.id, job.tenant, job.resource
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority <= 100
    ) AS each
    LIMIT %(cap)s::int
),
standings (standing, since) AS (
    SELECT
        CASE
            WHEN waiting.run_at > statement_timestamp() THEN 'scheduled'
            WHEN waiting.queue IN (SELECT stopped.queue FROM stopped) THEN 'queue_paused'
            WHEN waiting.tenant_id IN (SELECT paused.id FROM paused)
                OR waiting.task_id IN (SELECT paused.id FROM paused)
                OR waiting.resource_id IN (SELECT paused.id FROM paused)
                THEN 'jobs_paused'
            WHEN waiting.task NOT IN (SELECT known.task FROM known) THEN 'task_unknown'
            WHEN (waiting.queue, waiting.shard_key) IN (SELECT busy.queue, busy.shard_key FROM busy) THEN 'key_busy'
            WHEN blocked.id < waiting.id THEN 'key_blocked'
            WHEN waiting.tenant_id IN (SELECT full_up.id FROM full_up)
                OR waiting.task_id IN (SELECT full_up.id FROM full_up)
                OR waiting.resource_id IN (SELECT full_up.id FROM full_up)
                OR waiting.queue_id IN (SELECT full_up.id FROM full_up)
                THEN 'limit_reached'
            WHEN waiting.tenant_id IN (SELECT spent.id FROM spent)
                OR waiting.task_id IN (SELECT spent.id FROM spent)
                OR waiting.resource_id IN (SELECT spent.id FROM spent)
                OR waiting.queue_id IN (SELECT spent.id FROM spent)
                THEN 'rate_spent'
            ELSE 'due'
        END,
        waiting.run_at
    FROM waiting
    LEFT JOIN blocked ON blocked.queue = waiting.queue AND blocked.shard_key = waiting.shard_key
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
    NULLIF(
        GREATEST(extract(epoch FROM statement_timestamp()) - extract(epoch FROM min(standings.since)), 0), 0
    )::float8 AS overdue_seconds
FROM standings
GROUP BY standings.standing
ORDER BY standings.standing
