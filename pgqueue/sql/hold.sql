-- Hold one job.
-- Transition: pending, retrying -> paused, remembering where it came from.
-- Guard: id, version seen, state; under the row's lock.
-- The state stands in a sub-select: with statistics that know no such row, the planner would read all that the
-- state's partial index holds rather than the row by its id.
-- Returns: version after and state; no row when a guard refused.
UPDATE pgqueue_job AS job
SET state = 'paused', held_from = job.state, version = job.version + 1
WHERE job.id = %(id)s::bigint
    AND job.version = %(version_seen)s::bigint
    AND (SELECT job.state) IN ('pending', 'retrying')
RETURNING job.version, job.state, job.queue
