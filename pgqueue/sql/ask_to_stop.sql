-- Ask a running job to stop. A request: the state stays running until the worker honours it.
-- Transition: none; version + 1.
-- Guard: id, version seen, state, not asked before; under the row's lock.
-- The state stands in a sub-select: with statistics that know no such row, the planner would read all that the
-- state's partial index holds rather than the row by its id.
-- Returns: version after and state; no row when a guard refused.
UPDATE pgqueue_job AS job
SET stop_requested_at = statement_timestamp(), version = job.version + 1
WHERE job.id = %(id)s::bigint
    AND job.version = %(version_seen)s::bigint
    AND (SELECT job.state) = 'running'
    AND job.stop_requested_at IS NULL
RETURNING job.version, job.state, job.queue
