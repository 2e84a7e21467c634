-- Find which jobs exist, of those whose lock was not had: the others are gone. No locks.
-- Returns: ids.
SELECT job.id
FROM pgqueue_job AS job
WHERE job.id = ANY (%(ids)s::bigint[])
