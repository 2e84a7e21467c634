-- Move a waiting job to another queue.
-- Transition: none; version + 1.
-- Guard: id, version seen, state; under the row's lock.
-- The state stands in a sub-select, so that the row is read by its id.
-- Returns: version after, state and the new queue; no row when a guard refused.
UPDATE pgqueue_job AS job
SET queue = %(queue)s::text, version = job.version + 1
WHERE job.id = %(id)s::bigint
    AND job.version = %(version_seen)s::bigint
    AND (SELECT job.state) IN ('pending', 'retrying')
RETURNING job.version, job.state, job.queue
