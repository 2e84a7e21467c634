-- Let younger jobs of its shard key pass an unfinished job that blocks them.
-- Transition: none; version + 1.
-- Guard: id, version seen, state, it blocks its key; under the row's lock.
-- The state stands in a sub-select: with statistics that know no such row, the planner would read all that the
-- state's partial index holds rather than the row by its id.
-- Returns: version after and state; no row when a guard refused.
UPDATE pgqueue_job AS job
SET blocks_key = NULL, version = job.version + 1
WHERE job.id = %(id)s::bigint
    AND job.version = %(version_seen)s::bigint
    AND (SELECT job.state) IN ('pending', 'retrying', 'paused', 'unknown')
    AND job.blocks_key
RETURNING job.version, job.state, job.queue
