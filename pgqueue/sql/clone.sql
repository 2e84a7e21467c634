-- Run a job again as a new one, linked to it, with an operation key of its own: with its arguments, or with others.
-- Transition: none -> pending for the new job; none, version + 1, for the one that is cloned.
-- Guard: id, version seen, state, no effect is unknown or was given up as unknown, not purged; under the row's lock.
-- Writes: the version, so that one look clones once; the new job, its payload.
-- The state stands in a sub-select, so that the row is read by its id.
-- Returns: version after, state and queue of the job, and id of the new one; no row when a guard refused.
WITH cloned AS (
    UPDATE pgqueue_job AS job
    SET version = job.version + 1
    WHERE job.id = %(id)s::bigint
        AND job.version = %(version_seen)s::bigint
        AND (SELECT job.state) <> 'unknown'
        AND job.stage <> 'outcome_unknown'
        AND job.purged_at IS NULL
    RETURNING
        job.id, job.version, job.state, job.queue, job.task, job.priority, job.max_attempts, job.max_run_seconds,
        job.recovery, job.tenant, job.shard_key, job.resource, job.blocks_key, job.on_dead
),
job AS (
    INSERT INTO pgqueue_job (
        fence, version, created_at, run_at, cloned_from_id, max_run_seconds, priority, lane, attempts, max_attempts,
        lease_losses, unknown_effects, state, queue, task, recovery, stage, tenant, shard_key, resource,
        blocks_key, on_dead
    )
    SELECT
        0, 1, statement_timestamp(), statement_timestamp(), cloned.id, cloned.max_run_seconds, cloned.priority,
        CASE WHEN cloned.tenant IS NULL AND cloned.shard_key IS NULL AND cloned.resource IS NULL THEN 0 ELSE 1 END, 0, cloned.max_attempts, 0, 0,
        'pending', cloned.queue, cloned.task, cloned.recovery, 'not_called', cloned.tenant, cloned.shard_key,
        cloned.resource, cloned.blocks_key, cloned.on_dead
    FROM cloned
    RETURNING id
),
payload AS (
    INSERT INTO pgqueue_jobpayload (job_id, args, kwargs, trace)
    SELECT
        job.id, CASE WHEN %(is_anew)s::bool THEN %(args)s::jsonb ELSE old.args END,
        CASE WHEN %(is_anew)s::bool THEN %(kwargs)s::jsonb ELSE old.kwargs END, old.trace
    FROM job
    CROSS JOIN cloned
    LEFT JOIN pgqueue_jobpayload AS old ON old.job_id = cloned.id
    WHERE CASE
        WHEN %(is_anew)s::bool THEN %(args)s::jsonb IS NOT NULL OR %(kwargs)s::jsonb IS NOT NULL
        ELSE old.job_id IS NOT NULL
    END
)
SELECT cloned.version, cloned.state, cloned.queue, job.id
FROM cloned
CROSS JOIN job
