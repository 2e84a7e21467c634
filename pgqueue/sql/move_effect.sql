-- Move an effect to another stage: back to `not_called`, or on to `confirming` and `confirmed`.
-- The job's row is locked by `lock_owned.sql` in the same transaction, and the effects were read after it.
-- Writes: the effect, whose withdrawn call goes to its earlier calls; the job's stage and how many of its effects are unknown.
WITH moved AS (
    UPDATE pgqueue_effect AS effect
    SET stage = %(effect_stage)s::text,
        confirmed_at = CASE WHEN %(effect_stage)s::text = 'confirmed' THEN statement_timestamp() END,
        first_called_at = CASE WHEN %(effect_stage)s::text <> 'not_called' THEN effect.first_called_at END,
        called_at = CASE WHEN %(effect_stage)s::text <> 'not_called' THEN effect.called_at END,
        earlier_calls = CASE
            WHEN %(effect_stage)s::text = 'not_called' THEN COALESCE(effect.earlier_calls, '[]'::jsonb) || jsonb_build_object(
                'called_at', effect.called_at, 'fence', effect.fence, 'attempt', effect.attempt,
                'became', 'withdrawn'
            )
            ELSE effect.earlier_calls
        END,
        deadline_at = CASE WHEN %(effect_stage)s::text <> 'not_called' THEN effect.deadline_at END,
        replay_until = CASE WHEN %(effect_stage)s::text <> 'not_called' THEN effect.replay_until END
    WHERE effect.job_id = %(id)s::bigint AND effect.name = %(name)s::text
)
UPDATE pgqueue_job AS job
SET stage = %(stage)s::text,
    unknown_effects = %(unknown_effects)s::smallint,
    replay_until = %(replay_until)s::timestamptz
WHERE job.id = %(id)s::bigint
