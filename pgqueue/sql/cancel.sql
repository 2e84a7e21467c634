-- Cancel a job that is not running.
-- Transition: pending, retrying, paused -> cancelled.
-- Guard: id, version seen, state, no effect with an unknown outcome; under the row's lock.
-- Returns: version after and state; no row when a guard refused.
UPDATE pgqueue_job AS job
SET state = 'cancelled', held_from = NULL, version = job.version + 1, finished_at = statement_timestamp()
WHERE job.id = %(id)s::bigint
    AND job.version = %(version_seen)s::bigint
    AND job.state IN ('pending', 'retrying', 'paused')
    AND job.unknown_effects = 0
RETURNING job.version, job.state, job.queue
