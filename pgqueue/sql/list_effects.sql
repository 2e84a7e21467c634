-- List the effects of locked jobs, in the order of their first calls. Sent after the jobs' rows are locked: effects
-- are written under those locks alone.
-- Returns: of each effect its job and what the audit log keeps of it; no results.
SELECT
    effect.job_id, effect.name, effect.stage, effect.operation_key, effect.remote_reference, effect.called_at, effect.replay_until,
    extract(epoch FROM effect.deadline_at - statement_timestamp())::float8 AS deadline_seconds_left
FROM pgqueue_effect AS effect
WHERE effect.job_id = ANY (%(ids)s::bigint[])
ORDER BY effect.id
