-- Let one held job go on.
-- Transition: paused -> pending, retrying: where it came from.
-- Guard: id, version seen, state; under the row's lock.
-- Returns: version after and state; no row when a guard refused.
UPDATE pgqueue_job AS job
SET state = job.held_from, held_from = NULL, version = job.version + 1
WHERE job.id = %(id)s::bigint
    AND job.version = %(version_seen)s::bigint
    AND job.state = 'paused'
RETURNING job.version, job.state, job.queue
