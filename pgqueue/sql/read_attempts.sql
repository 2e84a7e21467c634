-- Read the recorded attempts of one job, oldest first.
-- Returns: fence, worker_id, claimed_at, started_at, outcome, error_class, traceback.
SELECT
    attempt.fence, attempt.worker_id, attempt.claimed_at, attempt.started_at, attempt.outcome,
    attempt.error_class, COALESCE(attempt.traceback, attempt.message, '') AS traceback
FROM pgqueue_attempt AS attempt
WHERE attempt.job_id = %(id)s::bigint
ORDER BY attempt.id
