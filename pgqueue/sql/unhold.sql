-- Let held jobs go on.
-- Transition: paused -> pending, retrying: where it came from.
-- Guard: id, version seen, state; under the row's lock.
-- The state stands in a sub-select, so that the rows are read by their ids.
-- Returns: each job that was changed, its version after, state and queue; none that a guard refused.
UPDATE pgqueue_job AS job
SET state = job.held_from, held_from = NULL, version = job.version + 1
FROM unnest(%(id)s::bigint[], %(version_seen)s::bigint[]) AS asked (id, version_seen)
WHERE job.id = asked.id
    AND job.version = asked.version_seen
    AND (SELECT job.state) = 'paused'
RETURNING job.id, job.version, job.state, job.queue
