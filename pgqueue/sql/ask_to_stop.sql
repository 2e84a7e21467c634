-- Ask running jobs to stop. A request: their state stays running until the worker honours it.
-- Transition: none; version + 1.
-- Guard: id, version seen, state, not asked before; under the row's lock.
-- The state stands in a sub-select, so that the rows are read by their ids.
-- Returns: each job that was changed, its version after, state and queue; none that a guard refused.
UPDATE pgqueue_job AS job
SET stop_requested_at = statement_timestamp(), version = job.version + 1
FROM unnest(%(id)s::bigint[], %(version_seen)s::bigint[]) AS asked (id, version_seen)
WHERE job.id = asked.id
    AND job.version = asked.version_seen
    AND (SELECT job.state) = 'running'
    AND job.stop_requested_at IS NULL
RETURNING job.id, job.version, job.state, job.queue
