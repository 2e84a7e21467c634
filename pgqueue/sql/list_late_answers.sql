-- List what superseded workers said too late of the effects of a locked job. Sent after the job's row is locked.
-- Returns: of each answer the effect, the remote reference, when it came, and the attempt's fence and worker; no
-- results.
SELECT
    answer.value ->> 'effect' AS effect, answer.value ->> 'remote_reference' AS remote_reference,
    answer.value ->> 'at' AS at, attempt.fence, attempt.worker_id
FROM pgqueue_attempt AS attempt
CROSS JOIN LATERAL jsonb_array_elements(
    CASE WHEN jsonb_typeof(attempt.evidence) = 'array' THEN attempt.evidence ELSE '[]'::jsonb END
) AS answer (value)
WHERE attempt.job_id = %(id)s::bigint AND answer.value ->> 'effect' IS NOT NULL
ORDER BY attempt.id
