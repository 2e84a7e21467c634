-- Enqueue many jobs in one statement.
-- Transition: none -> pending. Runs in the caller's transaction.
-- Writes: the jobs, in the order of the arrays; payloads where there are some.
-- Returns: id, in the order of the arrays.
WITH given AS MATERIALIZED (
    SELECT nextval(pg_get_serial_sequence('pgqueue_job', 'id')) AS id, call.*
    FROM unnest(
        %(run_ats)s::timestamptz[], %(priorities)s::smallint[], %(lanes)s::smallint[], %(max_attempts)s::smallint[],
        %(max_run_seconds)s::int[], %(queues)s::text[], %(tasks)s::text[], %(recoveries)s::text[],
        %(tenants)s::text[], %(shard_keys)s::text[], %(resources)s::text[], %(blocks_keys)s::bool[], %(on_deads)s::text[],
        %(args)s::jsonb[], %(kwargs)s::jsonb[]
    ) WITH ORDINALITY AS call (
        run_at, priority, lane, max_attempts, max_run_seconds, queue, task, recovery, tenant, shard_key, resource,
        blocks_key, on_dead, args, kwargs, place
    )
),
jobs AS (
    INSERT INTO pgqueue_job (
        id, fence, version, created_at, run_at, max_run_seconds, priority, lane, attempts, max_attempts,
        lease_losses, unknown_effects, state, queue, task, recovery, stage, tenant, shard_key, resource,
        blocks_key, on_dead
    )
    SELECT
        id, 0, 1, statement_timestamp(), COALESCE(run_at, statement_timestamp()), max_run_seconds, priority, lane,
        0, max_attempts, 0, 0, 'pending', queue, task, recovery, 'not_called', tenant, shard_key,
        resource, blocks_key, on_dead
    FROM given
    ORDER BY place
),
payloads AS (
    INSERT INTO pgqueue_jobpayload (job_id, args, kwargs)
    SELECT id, args, kwargs
    FROM given
    WHERE args IS NOT NULL OR kwargs IS NOT NULL
)
SELECT id
FROM given
ORDER BY place
