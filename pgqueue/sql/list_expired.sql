-- List running jobs whose lease has run out, in an order by chance. No locks.
-- Returns: id.
SELECT job.id
FROM pgqueue_job AS job
WHERE job.state = 'running' AND job.lease_until <= statement_timestamp()
ORDER BY random()
LIMIT %(limit)s::int
