-- Write down what a call to the outside world came to.
-- The job's row is locked by `lock_owned.sql` in the same transaction, and the effects were read after it.
-- Writes: the effect, `result_known`; the job's stage and how many of its effects are unknown.
WITH recorded AS (
    UPDATE pgqueue_effect AS effect
    SET stage = 'result_known',
        result = %(result)s::jsonb,
        remote_reference = %(remote_reference)s::text,
        known_at = statement_timestamp(),
        settled_by = 'worker'
    WHERE effect.job_id = %(id)s::bigint AND effect.name = %(name)s::text
)
UPDATE pgqueue_job AS job
SET stage = %(stage)s::text,
    unknown_effects = %(unknown_effects)s::smallint,
    replay_until = %(replay_until)s::timestamptz
WHERE job.id = %(id)s::bigint
