-- Give up a job.
-- Transition: pending, retrying, unknown -> dead.
-- Guard: id, version seen, state, no effect with an unknown outcome; under the row's lock.
-- Returns: version after and state; no row when a guard refused.
UPDATE pgqueue_job AS job
SET state = 'dead', probe_at = NULL, version = job.version + 1, finished_at = statement_timestamp()
WHERE job.id = %(id)s::bigint
    AND job.version = %(version_seen)s::bigint
    AND job.state IN ('pending', 'retrying', 'unknown')
    AND job.unknown_effects = 0
RETURNING job.version, job.state, job.queue
