-- Cancel jobs that are not running.
-- Transition: pending, retrying, paused -> cancelled.
-- Guard: id, version seen, state, no effect with an unknown outcome; under the row's lock.
-- The state stands in a sub-select, so that the rows are read by their ids.
-- Returns: each job that was changed, its version after, state and queue; none that a guard refused.
UPDATE pgqueue_job AS job
SET state = 'cancelled', held_from = NULL, version = job.version + 1, finished_at = statement_timestamp()
FROM unnest(%(id)s::bigint[], %(version_seen)s::bigint[]) AS asked (id, version_seen)
WHERE job.id = asked.id
    AND job.version = asked.version_seen
    AND (SELECT job.state) IN ('pending', 'retrying', 'paused')
    AND job.unknown_effects = 0
RETURNING job.id, job.version, job.state, job.queue
