-- Count unfinished jobs by what they wait for; or, given ids, tell it of those of them that wait. No locks; waiting rows beyond
-- the cap are not looked at. What is about keys is looked up for each waiting row: a job can be behind another one by
-- its index, and nobody reads all keys to tell it of one job.
-- Returns: standing; with ids, the job and what it waits for (the name of a queue or limit, or the number of the job in
-- front of it), else nulls; number of jobs; seconds since the longest of them should have gone on (null: not yet).
WITH alive (tasks, queues, excluded) AS MATERIALIZED (
    SELECT DISTINCT worker.tasks, worker.queues, worker.excluded_queues
    FROM pgqueue_worker AS worker
    WHERE worker.stopped_at IS NULL
        AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => worker.lease_seconds)
),
known (task) AS MATERIALIZED (
    SELECT DISTINCT jsonb_array_elements_text(alive.tasks) FROM alive
),
everywhere (task) AS MATERIALIZED (
    -- Tasks of workers that take from all queues: usually all are, and no queue is looked up.
    SELECT DISTINCT jsonb_array_elements_text(alive.tasks)
    FROM alive
    WHERE COALESCE(alive.queues, 'null') = 'null' AND COALESCE(alive.excluded, '[]') IN ('[]', 'null')
),
stopped (queue) AS MATERIALIZED (
    SELECT queue.name
    FROM pgqueue_queue AS queue
    WHERE queue.paused_at IS NOT NULL AND (queue.paused_until IS NULL OR queue.paused_until > statement_timestamp())
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
            AND EXISTS (SELECT FROM pgqueue_limit AS bound WHERE bound.max_running IS NOT NULL)
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
waiting AS MATERIALIZED (
    SELECT
        each.queue, each.task, each.shard_key, each.run_at, each.id, each.lane, 'tenant:' || each.tenant AS tenant_id,
        'resource:' || each.resource AS resource_id, 'task:' || each.task AS task_id, 'queue:' || each.queue AS queue_id
    FROM (
        SELECT job.queue, job.task, job.shard_key, job.run_at, job.id, job.tenant, job.resource, job.lane
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2, 3)
            AND %(ids)s::bigint[] IS NULL
        UNION ALL
        SELECT job.queue, job.task, job.shard_key, job.run_at, job.id, job.tenant, job.resource, job.lane
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority <= 100
            AND %(ids)s::bigint[] IS NULL
        UNION ALL
        SELECT job.queue, job.task, job.shard_key, job.run_at, job.id, job.tenant, job.resource, job.lane
        FROM unnest(%(ids)s::bigint[]) AS asked (id)
        JOIN pgqueue_job AS job ON job.id = asked.id
        WHERE job.state IN ('pending', 'retrying')
    ) AS each
    LIMIT %(cap)s::int
),
seen AS (
    SELECT
        waiting.queue, waiting.task, waiting.run_at, waiting.id, waiting.lane,
        waiting.queue_id, waiting.tenant_id, waiting.task_id, waiting.resource_id,
        CASE
            WHEN waiting.shard_key IS NOT NULL AND waiting.run_at <= statement_timestamp() THEN (
                SELECT job.id
                FROM pgqueue_job AS job
                WHERE job.state = 'running' AND job.queue = waiting.queue AND job.shard_key = waiting.shard_key
                LIMIT 1
            )
        END AS busy_id,
        CASE
            WHEN waiting.shard_key IS NOT NULL AND waiting.run_at <= statement_timestamp() THEN (
                SELECT job.id
                FROM pgqueue_job AS job
                WHERE job.blocks_key AND job.state IN ('pending', 'retrying', 'running', 'paused', 'unknown')
                    AND job.queue = waiting.queue AND job.shard_key = waiting.shard_key AND job.id < waiting.id
                ORDER BY job.id
                LIMIT 1
            )
        END AS blocker_id
    FROM waiting
),
standings (standing, since, id, waits_for) AS (
    SELECT
        CASE
            WHEN seen.run_at > statement_timestamp() THEN 'scheduled'
            WHEN seen.queue IN (SELECT stopped.queue FROM stopped) THEN 'queue_paused'
            WHEN seen.tenant_id IN (SELECT paused.id FROM paused)
                OR seen.task_id IN (SELECT paused.id FROM paused)
                OR seen.resource_id IN (SELECT paused.id FROM paused)
                THEN 'jobs_paused'
            WHEN seen.task NOT IN (SELECT known.task FROM known) THEN 'task_unknown'
            WHEN seen.task NOT IN (SELECT everywhere.task FROM everywhere) AND NOT EXISTS (
                SELECT
                FROM alive
                WHERE alive.tasks ? seen.task
                    AND (COALESCE(alive.queues, 'null') = 'null' OR alive.queues ? seen.queue)
                    AND NOT COALESCE(alive.excluded ? seen.queue, false)
            ) THEN 'queue_unserved'
            WHEN seen.busy_id IS NOT NULL THEN 'key_busy'
            WHEN seen.blocker_id IS NOT NULL THEN 'key_blocked'
            WHEN seen.tenant_id IN (SELECT full_up.id FROM full_up)
                OR seen.task_id IN (SELECT full_up.id FROM full_up)
                OR seen.resource_id IN (SELECT full_up.id FROM full_up)
                OR seen.queue_id IN (SELECT full_up.id FROM full_up)
                THEN 'limit_reached'
            WHEN seen.tenant_id IN (SELECT spent.id FROM spent)
                OR seen.task_id IN (SELECT spent.id FROM spent)
                OR seen.resource_id IN (SELECT spent.id FROM spent)
                OR seen.queue_id IN (SELECT spent.id FROM spent)
                THEN 'rate_spent'
            WHEN seen.lane IN (2, 3) THEN 'runs_alone'
            ELSE 'due'
        END AS standing,
        seen.run_at,
        seen.id,
        CASE WHEN %(ids)s::bigint[] IS NOT NULL THEN
            jsonb_build_object(
                'queue_paused', seen.queue,
                'queue_unserved', seen.queue,
                'task_unknown', seen.task,
                'key_busy', seen.busy_id::text,
                'key_blocked', seen.blocker_id::text,
                'jobs_paused', (
                    SELECT min(paused.id)
                    FROM paused
                    WHERE paused.id IN (seen.tenant_id, seen.task_id, seen.resource_id)
                ),
                'limit_reached', (
                    SELECT min(full_up.id)
                    FROM full_up
                    WHERE full_up.id IN (seen.tenant_id, seen.task_id, seen.resource_id, seen.queue_id)
                ),
                'rate_spent', (
                    SELECT min(spent.id)
                    FROM spent
                    WHERE spent.id IN (seen.tenant_id, seen.task_id, seen.resource_id, seen.queue_id)
                )
            )
        END
    FROM seen
    UNION ALL
    SELECT
        CASE WHEN job.lease_until > statement_timestamp() THEN 'leased' ELSE 'lease_expired' END, job.lease_until,
        job.id, NULL
    FROM pgqueue_job AS job
    WHERE job.state = 'running' AND %(ids)s::bigint[] IS NULL
    UNION ALL
    SELECT 'held', NULL, job.id, NULL
    FROM pgqueue_job AS job
    WHERE job.state = 'paused' AND %(ids)s::bigint[] IS NULL
    UNION ALL
    SELECT CASE WHEN job.probe_at IS NULL THEN 'needs_a_person' ELSE 'probed' END, NULL, job.id, NULL
    FROM pgqueue_job AS job
    WHERE job.state = 'unknown' AND %(ids)s::bigint[] IS NULL
),
told (standing, since, id, waits_for) AS (
    SELECT
        standings.standing, standings.since,
        CASE WHEN %(ids)s::bigint[] IS NOT NULL THEN standings.id END,
        standings.waits_for ->> standings.standing
    FROM standings
)
SELECT
    told.standing,
    told.id,
    told.waits_for,
    count(*) AS jobs,
    NULLIF(
        GREATEST(extract(epoch FROM statement_timestamp()) - extract(epoch FROM min(told.since)), 0), 0
    )::float8 AS overdue_seconds
FROM told
GROUP BY told.standing, told.id, told.waits_for
ORDER BY told.standing, told.id
