-- Enqueue one job under a unique key, unless one was in the key's window that has not ended.
-- Transition: none -> pending. Runs in the caller's transaction; waits for another transaction that opens a window of
-- the key, and then answers with no row: `find_window.sql` reads the winner.
-- Guard: (task, key) is unique in pgqueue_window, its latest window has ended.
-- Writes: the window, the job; its payload when there is one.
-- Returns: id, created_at; no row within the window of another.
WITH opened AS (
    INSERT INTO pgqueue_window AS latest (job_id, created_at, ends_at, task, key)
    VALUES (
        nextval(pg_get_serial_sequence('pgqueue_job', 'id')), statement_timestamp(),
        statement_timestamp() + make_interval(secs => %(window_seconds)s::float8), %(task)s::text, %(unique_key)s::text
    )
    ON CONFLICT (task, key) DO UPDATE
    SET job_id = EXCLUDED.job_id, created_at = EXCLUDED.created_at, ends_at = EXCLUDED.ends_at
    WHERE latest.ends_at <= statement_timestamp()
    RETURNING job_id
),
job AS (
    INSERT INTO pgqueue_job (
        id, fence, version, created_at, run_at, parent_id, max_run_seconds, priority, lane, attempts, max_attempts,
        lease_losses, unknown_effects, state, queue, task, recovery, stage, tenant, shard_key, resource, blocks_key,
        on_dead
    )
    SELECT
        opened.job_id, 0, 1, statement_timestamp(), COALESCE(%(run_at)s::timestamptz, statement_timestamp()),
        %(parent_id)s::bigint, %(max_run_seconds)s::int, %(priority)s::smallint, %(lane)s::smallint, 0,
        %(max_attempts)s::smallint, 0, 0, 'pending', %(queue)s::text, %(task)s::text, %(recovery)s::text,
        'not_called', %(tenant)s::text, %(shard_key)s::text, %(resource)s::text, %(blocks_key)s::bool,
        %(on_dead)s::text
    FROM opened
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
