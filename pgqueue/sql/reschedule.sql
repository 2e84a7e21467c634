-- Make waiting jobs due at another time: now, or after a delay.
-- Transition: none; version + 1.
-- Guard: id, version seen, state; under the row's lock.
-- The state stands in a sub-select, so that the rows are read by their ids.
-- Returns: each job that was changed, its version after, state and queue; none that a guard refused.
UPDATE pgqueue_job AS job
SET run_at = statement_timestamp() + make_interval(secs => asked.delay_seconds), version = job.version + 1
FROM unnest(%(id)s::bigint[], %(version_seen)s::bigint[], %(delay_seconds)s::float8[])
    AS asked (id, version_seen, delay_seconds)
WHERE job.id = asked.id
    AND job.version = asked.version_seen
    AND (SELECT job.state) IN ('pending', 'retrying')
RETURNING job.id, job.version, job.state, job.queue
