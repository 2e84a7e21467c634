-- Give the job that waits under a unique key the arguments, time and priority of a later call.
-- Transition: none; version + 1. Runs in the caller's transaction; waits for whoever holds the row.
-- Guard: task and key, unique until it started, it was never claimed, and it still waits.
-- Writes: the job; its payload. A claim that overtakes this one's COMMIT reads the payload again: `read_payloads.sql`.
-- Returns: id, created_at, run_at; no row when it has begun, or ended, meanwhile.
WITH job AS (
    UPDATE pgqueue_job AS waiting
    SET run_at = COALESCE(%(run_at)s::timestamptz, statement_timestamp()),
        priority = %(priority)s::smallint,
        replaced_at = statement_timestamp(),
        version = waiting.version + 1
    WHERE waiting.task = %(task)s::text
        AND waiting.unique_key = %(unique_key)s::text
        AND waiting.until_started
        AND waiting.fence = 0
        AND waiting.state IN ('pending', 'paused')
    RETURNING id, created_at, run_at
),
payload AS (
    INSERT INTO pgqueue_jobpayload AS payload (job_id, args, kwargs)
    SELECT job.id, %(args)s::jsonb, %(kwargs)s::jsonb
    FROM job
    ON CONFLICT (job_id) DO UPDATE
    SET args = EXCLUDED.args, kwargs = EXCLUDED.kwargs
)
SELECT id, created_at, run_at
FROM job
