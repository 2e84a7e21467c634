-- Find endings that this worker wrote before, when the answer to their COMMIT was lost.
-- A job row keeps the fence of its last claim and who settled it; a failed attempt keeps its own row, also
-- when the job has been claimed again since.
-- The guards stand in a sub-select of their own: in a join, a table whose statistics know no running row makes
-- the planner read the table first and the given rows once for each.
-- Returns: id, the job's present state and an instant, for each (id, fence) that this worker settled.
SELECT mine.id, mine.state, mine.written_at
FROM unnest(%(ids)s::bigint[], %(fences)s::bigint[]) AS ending (id, fence)
CROSS JOIN LATERAL (
    SELECT job.id, job.state, COALESCE(job.finished_at, statement_timestamp()) AS written_at
    FROM pgqueue_job AS job
    WHERE job.id = ending.id
        AND (
            (job.fence = ending.fence AND job.worker_id IS NULL AND job.settled_by = %(worker_id)s::bigint)
            OR EXISTS (
                SELECT
                FROM pgqueue_attempt AS attempt
                WHERE attempt.job_id = ending.id
                    AND attempt.fence = ending.fence
                    AND attempt.worker_id = %(worker_id)s::bigint
                    AND attempt.outcome <> 'lost'
            )
        )
    OFFSET 0
) AS mine
