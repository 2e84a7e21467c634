-- Keep what a superseded worker says too late, on the attempt that it lost. Nothing is overwritten: it is added.
-- Transition: none. A job that waits for a verdict gets version + 1, so that a verdict of somebody who has not seen it
-- is refused. A row that somebody holds keeps its version: whoever holds it began before this came.
-- Guard: id, fence, worker_id of the attempt, not purged.
-- Returns: id of the attempt; no row when there is no such attempt.
WITH kept AS (
    UPDATE pgqueue_attempt AS attempt
    SET evidence = COALESCE(attempt.evidence, '[]'::jsonb) || jsonb_build_array(
        %(evidence)s::jsonb || jsonb_build_object('at', statement_timestamp())
    )
    WHERE attempt.job_id = %(id)s::bigint
        AND attempt.fence = %(fence)s::bigint
        AND attempt.worker_id = %(worker_id)s::bigint
        AND (attempt.evidence IS NULL OR jsonb_typeof(attempt.evidence) = 'array')
    RETURNING attempt.id, attempt.job_id
),
free AS MATERIALIZED (
    SELECT job.id
    FROM kept
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM pgqueue_job AS job
        WHERE job.id = kept.job_id AND (SELECT job.state) = 'unknown'
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
),
noted AS (
    UPDATE pgqueue_job AS job
    SET version = job.version + 1
    FROM free
    WHERE job.id = free.id
)
SELECT kept.id
FROM kept
