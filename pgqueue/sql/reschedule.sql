-- Make a waiting job due at another time: now, or after a delay.
-- Transition: none; version + 1.
-- Guard: id, version seen, state; under the row's lock.
-- The state stands in a sub-select, so that the row is read by its id.
-- Returns: version after and state; no row when a guard refused.
UPDATE pgqueue_job AS job
SET run_at = statement_timestamp() + make_interval(secs => %(delay_seconds)s::float8), version = job.version + 1
WHERE job.id = %(id)s::bigint
    AND job.version = %(version_seen)s::bigint
    AND (SELECT job.state) IN ('pending', 'retrying')
RETURNING job.version, job.state, job.queue
