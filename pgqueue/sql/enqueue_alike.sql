-- Enqueue jobs that differ in nothing and have no arguments: for these `enqueue_many.sql` would take a fifth longer.
-- Transition: none -> pending. Runs in the caller's transaction.
-- Writes: the jobs.
-- Returns: id; which is whose does not matter.
INSERT INTO pgqueue_job (
    fence, version, created_at, run_at, max_run_seconds, parent_id, priority, lane, attempts, max_attempts,
    lease_losses, unknown_effects, state, queue, task, recovery, stage, tenant, shard_key, resource, blocks_key, on_dead
)
SELECT
    0, 1, statement_timestamp(), COALESCE(%(run_at)s::timestamptz, statement_timestamp()), %(max_run_seconds)s::int,
    %(parent_id)s::bigint, %(priority)s::smallint, %(lane)s::smallint, 0, %(max_attempts)s::smallint, 0, 0, 'pending',
    %(queue)s::text, %(task)s::text, %(recovery)s::text, 'not_called', %(tenant)s::text, %(shard_key)s::text,
    %(resource)s::text, %(blocks_key)s::bool, %(on_dead)s::text
FROM generate_series(1, %(count)s::int)
RETURNING id
