-- Lock a job whose outcome is unknown, for the answer to the question of this fence.
-- Guard: id, fence, state.
-- Returns: version; no row when a verdict or a later question came first.
SELECT job.version
FROM pgqueue_job AS job
WHERE job.id = %(id)s::bigint AND job.fence = %(fence)s::bigint AND job.state = 'unknown'
FOR NO KEY UPDATE
