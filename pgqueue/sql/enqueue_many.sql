-- Enqueue many jobs in one statement.
-- Transition: none -> pending. Runs in the caller's transaction.
-- Writes: the jobs; payloads where there are some.
-- What all jobs have in common comes once, and its array is null: a thousand jobs of one task need none but arguments.
-- The sequence's name is read in a sub-select, once: looked up for every row it would take as long as the insert.
-- Returns: id, in the order of the arrays.
WITH given AS MATERIALIZED (
    SELECT
        call.place,
        nextval((SELECT pg_get_serial_sequence('pgqueue_job', 'id')::regclass)) AS id,
        COALESCE(call.run_at, %(run_at)s::timestamptz, statement_timestamp()) AS run_at,
        COALESCE(call.priority, %(priority)s::smallint) AS priority,
        COALESCE(call.lane, %(lane)s::smallint) AS lane,
        COALESCE(call.max_attempts, %(max_attempts)s::smallint) AS max_attempts,
        COALESCE(call.max_run_seconds, %(max_run_seconds)s::int) AS max_run_seconds,
        COALESCE(call.parent_id, %(parent_id)s::bigint) AS parent_id,
        COALESCE(call.queue, %(queue)s::text) AS queue,
        COALESCE(call.task, %(task)s::text) AS task,
        COALESCE(call.recovery, %(recovery)s::text) AS recovery,
        COALESCE(call.tenant, %(tenant)s::text) AS tenant,
        COALESCE(call.shard_key, %(shard_key)s::text) AS shard_key,
        COALESCE(call.resource, %(resource)s::text) AS resource,
        COALESCE(call.blocks_key, %(blocks_key)s::bool) AS blocks_key,
        COALESCE(call.on_dead, %(on_dead)s::text) AS on_dead,
        COALESCE(call.args, %(args)s::jsonb) AS args,
        COALESCE(call.kwargs, %(kwargs)s::jsonb) AS kwargs
    FROM ROWS FROM (
        generate_series(1, %(count)s::int),
        unnest(
            %(each_run_at)s::timestamptz[], %(each_priority)s::smallint[], %(each_lane)s::smallint[],
            %(each_max_attempts)s::smallint[], %(each_max_run_seconds)s::int[], %(each_parent_id)s::bigint[],
            %(each_queue)s::text[], %(each_task)s::text[], %(each_recovery)s::text[], %(each_tenant)s::text[],
            %(each_shard_key)s::text[], %(each_resource)s::text[], %(each_blocks_key)s::bool[],
            %(each_on_dead)s::text[], %(each_args)s::jsonb[], %(each_kwargs)s::jsonb[]
        )
    ) AS call (
        place, run_at, priority, lane, max_attempts, max_run_seconds, parent_id, queue, task, recovery, tenant,
        shard_key, resource, blocks_key, on_dead, args, kwargs
    )
),
jobs AS (
    INSERT INTO pgqueue_job (
        id, fence, version, created_at, run_at, max_run_seconds, parent_id, priority, lane, attempts, max_attempts,
        lease_losses, unknown_effects, state, queue, task, recovery, stage, tenant, shard_key, resource,
        blocks_key, on_dead
    )
    SELECT
        id, 0, 1, statement_timestamp(), run_at, max_run_seconds, parent_id, priority, lane, 0, max_attempts, 0, 0,
        'pending', queue, task, recovery, 'not_called', tenant, shard_key, resource, blocks_key, on_dead
    FROM given
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
