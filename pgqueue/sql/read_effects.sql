-- Read the effects of one job, in the order of their first calls. Sent after the job's row is locked: effects are
-- written under that lock alone.
-- Returns: the effects; results as JSON text.
SELECT
    effect.name, effect.stage, effect.fence, effect.operation_key, effect.remote_reference,
    effect.result::text AS result, effect.first_called_at, effect.called_at, effect.replay_until,
    COALESCE(effect.replay_until > statement_timestamp(), false) AS replay_safe,
    extract(epoch FROM effect.deadline_at - statement_timestamp())::float8 AS deadline_seconds_left
FROM pgqueue_effect AS effect
WHERE effect.job_id = %(id)s::bigint
ORDER BY effect.id
