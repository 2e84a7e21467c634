-- Write down that a call to the outside world begins. Committed before the call.
-- The job's row is locked by `lock_owned.sql` in the same transaction, and the effects were read after it.
-- Writes: the effect, `outcome_unknown`, with the instants that count from its first call kept, and the call of an
-- earlier attempt added to its earlier calls; the job's stage,
-- how many of its effects are unknown, and until when a replay of the first of them is safe.
-- Returns: the idempotency key of the effect.
WITH opened AS (
    INSERT INTO pgqueue_effect (
        job_id, fence, first_called_at, called_at, deadline_at, replay_until, attempt, name, stage, operation_key
    )
    VALUES (
        %(id)s::bigint, %(fence)s::bigint, statement_timestamp(), statement_timestamp(),
        statement_timestamp() + make_interval(secs => %(call_deadline_seconds)s::float8),
        statement_timestamp() + make_interval(secs => %(replay_safe_seconds)s::float8),
        %(attempt)s::smallint, %(name)s::text, 'outcome_unknown', %(operation_key)s::text
    )
    ON CONFLICT (job_id, name) DO UPDATE
    SET fence = EXCLUDED.fence,
        first_called_at = COALESCE(pgqueue_effect.first_called_at, EXCLUDED.first_called_at),
        called_at = EXCLUDED.called_at,
        deadline_at = EXCLUDED.deadline_at,
        replay_until = COALESCE(pgqueue_effect.replay_until, EXCLUDED.replay_until),
        attempt = EXCLUDED.attempt,
        stage = EXCLUDED.stage,
        earlier_calls = CASE
            WHEN pgqueue_effect.called_at IS NULL OR pgqueue_effect.fence = EXCLUDED.fence
                THEN pgqueue_effect.earlier_calls
            ELSE COALESCE(pgqueue_effect.earlier_calls, '[]'::jsonb) || jsonb_build_object(
                'called_at', pgqueue_effect.called_at, 'fence', pgqueue_effect.fence,
                'attempt', pgqueue_effect.attempt, 'became', 'called_again'
            )
        END
    RETURNING pgqueue_effect.operation_key, pgqueue_effect.replay_until
),
staged AS (
    UPDATE pgqueue_job AS job
    SET stage = 'outcome_unknown',
        unknown_effects = %(unknown_effects)s::smallint,
        replay_until = LEAST(%(replay_until)s::timestamptz, opened.replay_until)
    FROM opened
    WHERE job.id = %(id)s::bigint
)
SELECT opened.operation_key
FROM opened
