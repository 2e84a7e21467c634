-- Let younger jobs of a shard key pass unfinished jobs that block them.
-- Transition: none; version + 1.
-- Guard: id, version seen, state, it blocks its key; under the row's lock.
-- The state stands in a sub-select, so that the rows are read by their ids.
-- Returns: each job that was changed, its version after, state and queue; none that a guard refused.
UPDATE pgqueue_job AS job
SET blocks_key = NULL, version = job.version + 1
FROM unnest(%(id)s::bigint[], %(version_seen)s::bigint[]) AS asked (id, version_seen)
WHERE job.id = asked.id
    AND job.version = asked.version_seen
    AND (SELECT job.state) IN ('pending', 'retrying', 'paused', 'unknown')
    AND job.blocks_key
RETURNING job.id, job.version, job.state, job.queue
