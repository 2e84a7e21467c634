-- Move waiting jobs to another queue.
-- Transition: none; version + 1.
-- Guard: id, version seen, state; under the row's lock.
-- The state stands in a sub-select, so that the rows are read by their ids.
-- Returns: each job that was changed, its version after, state and queue; none that a guard refused.
UPDATE pgqueue_job AS job
SET queue = asked.queue, version = job.version + 1
FROM unnest(%(id)s::bigint[], %(version_seen)s::bigint[], %(queue)s::text[])
    AS asked (id, version_seen, queue)
WHERE job.id = asked.id
    AND job.version = asked.version_seen
    AND (SELECT job.state) IN ('pending', 'retrying')
RETURNING job.id, job.version, job.state, job.queue
