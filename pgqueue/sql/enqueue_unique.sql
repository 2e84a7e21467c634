-- Enqueue one job under a unique key, unless a job of its task and key is there.
-- Transition: none -> pending. Runs in the caller's transaction; waits for another transaction that inserts or ends a
-- job of the key. No row: `find_unique.sql` or `replace_waiting.sql` reads under a new snapshot what hid it.
-- Guard: (task, unique_key) is unique while a job of the key is unfinished, or has not started (unique indexes).
-- Writes: the job; its payload when there is one.
-- Returns: id, created_at; no row when there was a job of the key.
WITH job AS (
    INSERT INTO pgqueue_job (
        fence, version, created_at, run_at, parent_id, max_run_seconds, priority, lane, attempts, max_attempts,
        lease_losses, unknown_effects, state, queue, task, recovery, stage, tenant, shard_key, resource, blocks_key,
        unique_key, until_started, on_dead
    )
    VALUES (
        0, 1, statement_timestamp(), COALESCE(%(run_at)s::timestamptz, statement_timestamp()),
        %(parent_id)s::bigint, %(max_run_seconds)s::int, %(priority)s::smallint, %(lane)s::smallint, 0,
        %(max_attempts)s::smallint, 0, 0, 'pending', %(queue)s::text, %(task)s::text, %(recovery)s::text,
        'not_called', %(tenant)s::text, %(shard_key)s::text, %(resource)s::text, %(blocks_key)s::bool,
        %(unique_key)s::text, %(until_started)s::bool, %(on_dead)s::text
    )
    ON CONFLICT DO NOTHING
    RETURNING id, created_at
),
payload AS (
    INSERT INTO pgqueue_jobpayload (job_id, args, kwargs)
    SELECT job.id, %(args)s::jsonb, %(kwargs)s::jsonb
    FROM job
    WHERE %(args)s::jsonb IS NOT NULL OR %(kwargs)s::jsonb IS NOT NULL
)
SELECT id, created_at
FROM job
