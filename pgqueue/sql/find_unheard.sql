-- Find claims of this worker whose answer it never heard: running rows under its name that it does not hold.
-- Sent after a connection was lost, when no claim is under way.
-- Returns: id, fence.
SELECT job.id, job.fence
FROM pgqueue_job AS job
WHERE job.state = 'running'
    AND job.worker_id = %(worker_id)s::bigint
    AND job.id <> ALL (%(held_ids)s::bigint[])
