-- Look when the next question is due. No locks.
-- Returns: seconds, negative when it is overdue; null when there is none.
SELECT extract(epoch FROM min(job.probe_at) - statement_timestamp())::float8 AS seconds
FROM pgqueue_job AS job
WHERE job.state = 'unknown' AND job.probe_at IS NOT NULL AND job.task = ANY (%(tasks)s::text[])
