-- List due jobs of known tasks, for a test that runs them one after the other. No locks: the claim decides.
-- Order: priority from high to low, then run_at, then id; over all lanes and queues, so that a test knows it.
-- Returns: id.
SELECT job.id
FROM pgqueue_job AS job
WHERE job.state IN ('pending', 'retrying')
    AND job.run_at <= statement_timestamp()
    AND job.task = ANY (%(tasks)s::text[])
    AND (%(queues)s::text[] IS NULL OR job.queue = ANY (%(queues)s::text[]))
ORDER BY job.priority DESC, job.run_at, job.id
