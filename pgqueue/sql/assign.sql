-- Say who looks after a job that waits for a person, and from when on it is worth a look.
-- Transition: none; version + 1.
-- Guard: id, version seen, state; under the row's lock.
-- The state stands in a sub-select: with statistics that know no such row, the planner would read all that the
-- state's partial index holds rather than the row by its id.
-- Returns: version after, state and queue; no row when a guard refused.
UPDATE pgqueue_job AS job
SET taken_by = COALESCE(%(taken_by)s::text, job.taken_by),
    snoozed_until = statement_timestamp() + make_interval(secs => %(for_seconds)s::float8),
    version = job.version + 1
WHERE job.id = %(id)s::bigint
    AND job.version = %(version_seen)s::bigint
    AND (SELECT job.state) = 'unknown'
RETURNING job.version, job.state, job.queue
