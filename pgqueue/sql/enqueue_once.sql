-- Enqueue one job under an operation key, unless the key is spent.
-- Transition: none -> pending. Runs in the caller's transaction; waits for another transaction that
-- is spending the same key, and then answers with no row: `find_operation.sql` reads the winner.
-- Guard: (task, key) is unique in pgqueue_operationkey.
-- Writes: the key, the job; its payload when there is one.
-- Returns: id, created_at; no row when the key was spent before.
WITH spent AS (
    INSERT INTO pgqueue_operationkey (job_id, created_at, task, key, digest)
    VALUES (
        nextval(pg_get_serial_sequence('pgqueue_job', 'id')), statement_timestamp(), %(task)s::text,
        %(operation_key)s::text, %(digest)s::text
    )
    ON CONFLICT (task, key) DO NOTHING
    RETURNING job_id
),
job AS (
    INSERT INTO pgqueue_job (
        id, fence, version, created_at, run_at, parent_id, max_run_seconds, priority, lane, attempts, max_attempts,
        lease_losses, unknown_effects, state, queue, task, recovery, stage, tenant, shard_key, resource,
        blocks_key, on_dead, operation_key
    )
    SELECT
        spent.job_id, 0, 1, statement_timestamp(), COALESCE(%(run_at)s::timestamptz, statement_timestamp()),
        %(parent_id)s::bigint, %(max_run_seconds)s::int, %(priority)s::smallint, %(lane)s::smallint, 0,
        %(max_attempts)s::smallint, 0, 0, 'pending', %(queue)s::text, %(task)s::text, %(recovery)s::text,
        'not_called', %(tenant)s::text, %(shard_key)s::text, %(resource)s::text,
        %(blocks_key)s::bool, %(on_dead)s::text, %(operation_key)s::text
    FROM spent
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
