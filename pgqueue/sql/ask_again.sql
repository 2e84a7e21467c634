-- Have the remote system asked now what became of an effect.
-- Transition: none; version + 1.
-- Guard: id, version seen, state, its task can be asked, an effect's outcome is unknown; under the row's lock.
-- The state stands in a sub-select: with statistics that know no such row, the planner would read all that the
-- state's partial index holds rather than the row by its id.
-- Returns: version after, state and queue; no row when a guard refused.
UPDATE pgqueue_job AS job
SET probe_at = statement_timestamp(), probes = 0, version = job.version + 1
WHERE job.id = %(id)s::bigint
    AND job.version = %(version_seen)s::bigint
    AND (SELECT job.state) = 'unknown'
    AND job.recovery = 'probe'
    AND job.unknown_effects > 0
RETURNING job.version, job.state, job.queue
