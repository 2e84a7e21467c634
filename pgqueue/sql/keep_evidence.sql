-- Keep what a superseded worker says too late, on the attempt that it lost. Nothing is overwritten: it is added.
-- Guard: id, fence, worker_id of the attempt, not purged.
-- Returns: id of the attempt; no row when there is no such attempt.
UPDATE pgqueue_attempt AS attempt
SET evidence = COALESCE(attempt.evidence, '[]'::jsonb) || jsonb_build_array(
    %(evidence)s::jsonb || jsonb_build_object('at', statement_timestamp())
)
WHERE attempt.job_id = %(id)s::bigint
    AND attempt.fence = %(fence)s::bigint
    AND attempt.worker_id = %(worker_id)s::bigint
    AND (attempt.evidence IS NULL OR jsonb_typeof(attempt.evidence) = 'array')
RETURNING attempt.id
