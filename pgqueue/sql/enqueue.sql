-- Enqueue one job.
-- Transition: none -> pending. Runs in the caller's transaction.
-- Writes: the job; its payload when there is one.
-- Returns: id, created_at; and wakes workers where that is asked, of a statement that is a transaction by itself.
WITH job AS (
    INSERT INTO pgqueue_job (
        fence, version, created_at, run_at, parent_id, max_run_seconds, priority, lane, attempts, max_attempts,
        lease_losses, unknown_effects, state, queue, task, recovery, stage, tenant, shard_key, resource,
        blocks_key, on_dead
    )
    VALUES (
        0, 1, statement_timestamp(), COALESCE(%(run_at)s::timestamptz, statement_timestamp()),
        %(parent_id)s::bigint, %(max_run_seconds)s::int, %(priority)s::smallint, %(lane)s::smallint, 0,
        %(max_attempts)s::smallint, 0, 0, 'pending', %(queue)s::text, %(task)s::text, %(recovery)s::text,
        'not_called', %(tenant)s::text, %(shard_key)s::text, %(resource)s::text,
        %(blocks_key)s::bool, %(on_dead)s::text
    )
    RETURNING id, created_at
),
payload AS (
    INSERT INTO pgqueue_jobpayload (job_id, args, kwargs)
    SELECT job.id, %(args)s::jsonb, %(kwargs)s::jsonb
    FROM job
    WHERE %(args)s::jsonb IS NOT NULL OR %(kwargs)s::jsonb IS NOT NULL
)
SELECT
    id, created_at,
    CASE WHEN %(wakes)s::bool THEN pg_notify('pgqueue', %(queue)s::text) IS NULL ELSE false END AS woken
FROM job
