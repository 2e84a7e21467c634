-- Read which job keeps others of its task and unique key out. Sent after `enqueue_unique.sql` gave no row.
-- Returns: id, created_at; no row when it has ended, or begun, meanwhile.
SELECT job.id, job.created_at
FROM pgqueue_job AS job
WHERE job.task = %(task)s::text
    AND job.unique_key = %(unique_key)s::text
    AND job.until_started IS NULL
    AND %(until_started)s::bool IS NULL
    AND job.state IN ('pending', 'retrying', 'running', 'paused', 'unknown')
UNION ALL
SELECT job.id, job.created_at
FROM pgqueue_job AS job
WHERE job.task = %(task)s::text
    AND job.unique_key = %(unique_key)s::text
    AND job.until_started
    AND %(until_started)s::bool
    AND job.fence = 0
    AND job.state IN ('pending', 'paused')
