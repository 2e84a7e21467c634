-- Find endings that this worker wrote before, when the answer to their COMMIT was lost.
-- A job row keeps the fence of its last claim and who settled it; a failed attempt keeps its own row, also
-- when the job has been claimed again since.
-- Returns: id, the job's present state and an instant, for each (id, fence) that this worker settled.
SELECT job.id, job.state, COALESCE(job.finished_at, statement_timestamp()) AS written_at
FROM unnest(%(ids)s::bigint[], %(fences)s::bigint[]) AS mine (id, fence)
JOIN pgqueue_job AS job ON job.id = mine.id
WHERE (job.fence = mine.fence AND job.worker_id IS NULL AND job.settled_by = %(worker_id)s::bigint)
    OR EXISTS (
        SELECT
        FROM pgqueue_attempt AS attempt
        WHERE attempt.job_id = mine.id
            AND attempt.fence = mine.fence
            AND attempt.worker_id = %(worker_id)s::bigint
            AND attempt.outcome <> 'lost'
    )
