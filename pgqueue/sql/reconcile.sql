-- Settle an unknown outcome with a verdict, an operator's or a probe's.
-- Transition: unknown -> retrying, succeeded, dead. While another effect is unknown, it stays.
-- Guard: id, version seen, fence as locked, state, the effect's outcome is unknown, past its call's deadline where it
-- is said not to have happened, nothing else is unknown where the job ends for what happened; under the row's lock.
-- Writes: the job with a new fence, so that a probe's late answer is refused; the effect, whose call that did not happen
-- goes to its earlier calls. Given up, the effect keeps its stage, and the job with it: such a job is never run again.
-- The state stands in a sub-select: with statistics that know no such row, the planner would read all that the
-- state's partial index holds rather than the row by its id.
-- Returns: version after, state and queue; no row when a guard refused.
WITH reconciled AS (
    UPDATE pgqueue_job AS job
    SET state = %(target)s::text,
        version = job.version + 1,
        fence = nextval('pgqueue_fence'),
        stage = %(stage)s::text,
        unknown_effects = %(unknown_effects)s::smallint,
        replay_until = %(replay_until)s::timestamptz,
        probe_at = CASE
            WHEN %(target)s::text <> 'unknown' THEN NULL
            WHEN %(probe)s::bool THEN statement_timestamp()
            ELSE job.probe_at
        END,
        probes = 0,
        run_at = CASE WHEN %(target)s::text = 'retrying' THEN statement_timestamp() ELSE job.run_at END,
        compensated_at = CASE WHEN %(compensated)s::bool THEN statement_timestamp() END,
        finished_at = CASE WHEN %(target)s::text IN ('succeeded', 'dead') THEN statement_timestamp() END,
        stop_requested_at = CASE WHEN %(target)s::text = 'unknown' THEN job.stop_requested_at END,
        taken_by = CASE WHEN %(target)s::text = 'unknown' THEN job.taken_by END,
        snoozed_until = NULL
    WHERE job.id = %(id)s::bigint
        AND job.version = %(version_seen)s::bigint
        AND job.fence = %(fence)s::bigint
        AND (SELECT job.state) = 'unknown'
        AND CASE
            WHEN %(effect)s::text IS NULL
                THEN (job.unknown_effects > 0) = (%(target)s::text = 'dead')
            ELSE EXISTS (
                SELECT
                FROM pgqueue_effect AS effect
                WHERE effect.job_id = job.id
                    AND effect.name = %(effect)s::text
                    AND effect.stage = 'outcome_unknown'
                    AND (%(effect_stage)s::text <> 'not_called' OR effect.deadline_at <= statement_timestamp())
            )
        END
        AND (%(target)s::text NOT IN ('succeeded', 'dead') OR %(unknown_effects)s::smallint = 0)
    RETURNING job.id, job.version, job.state, job.queue
),
settled AS (
    UPDATE pgqueue_effect AS effect
    SET stage = %(effect_stage)s::text,
        remote_reference = COALESCE(%(remote_reference)s::text, effect.remote_reference),
        result = %(result)s::jsonb,
        evidence = %(evidence)s::text,
        settled_by = %(actor_name)s::text,
        known_at = CASE WHEN %(effect_stage)s::text <> 'not_called' THEN statement_timestamp() END,
        first_called_at = CASE WHEN %(effect_stage)s::text <> 'not_called' THEN effect.first_called_at END,
        called_at = CASE WHEN %(effect_stage)s::text <> 'not_called' THEN effect.called_at END,
        earlier_calls = CASE
            WHEN %(effect_stage)s::text = 'not_called' THEN COALESCE(effect.earlier_calls, '[]'::jsonb) || jsonb_build_object(
                'called_at', effect.called_at, 'fence', effect.fence, 'attempt', effect.attempt,
                'became', 'did_not_happen'
            )
            ELSE effect.earlier_calls
        END,
        deadline_at = CASE WHEN %(effect_stage)s::text <> 'not_called' THEN effect.deadline_at END,
        replay_until = CASE WHEN %(effect_stage)s::text <> 'not_called' THEN effect.replay_until END
    FROM reconciled
    WHERE effect.job_id = reconciled.id AND effect.name = %(effect)s::text
)
SELECT reconciled.version, reconciled.state, reconciled.queue
FROM reconciled
