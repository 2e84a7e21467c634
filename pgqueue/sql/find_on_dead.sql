-- Find dead jobs that are to be followed by another task. Sent in the transaction that made them dead.
-- Returns: id, name of that task, queue and priority of the job.
SELECT job.id, job.on_dead, job.queue, job.priority
FROM pgqueue_job AS job
WHERE job.id = ANY (%(ids)s::bigint[]) AND job.state = 'dead' AND job.on_dead IS NOT NULL
