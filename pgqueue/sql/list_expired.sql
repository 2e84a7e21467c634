-- List running jobs whose lease has run out, the longest overdue first. No locks.
-- Returns: id.
SELECT job.id
FROM pgqueue_job AS job
WHERE job.state = 'running' AND job.lease_until <= statement_timestamp()
ORDER BY job.lease_until
LIMIT %(limit)s::int
