-- Delete jobs that ended long ago, with all that belongs to them, among so many rows by number.
-- Guard: ended long ago, for its state, no effect was given up as unknown; a row that somebody holds is passed over.
-- Their operation keys stay spent, and their audit rows stay.
-- Writes: the jobs, payloads, results, attempts, effects, probes and requests for approval that are deleted; not a
-- request that can still be approved: whoever does holds it, and waits for its job.
-- Returns: the highest number looked at, how many were looked at, how many were deleted.
WITH looked AS MATERIALIZED (
    SELECT job.id
    FROM pgqueue_job AS job
    WHERE job.id > %(after_id)s::bigint
    ORDER BY job.id
    LIMIT %(limit)s::int
),
old AS MATERIALIZED (
    SELECT job.id
    FROM pgqueue_job AS job
    WHERE job.id = ANY (ARRAY(SELECT looked.id FROM looked))
        AND job.finished_at < statement_timestamp() - make_interval(
            secs => CASE
                WHEN job.state IN ('succeeded', 'cancelled') THEN %(retention_seconds)s::float8
                WHEN job.state = 'dead' THEN %(dead_retention_seconds)s::float8
            END
        )
        AND job.stage <> 'outcome_unknown'
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM pgqueue_job AS job
    USING old
    WHERE job.id = old.id
    RETURNING job.id
),
payloads AS (
    DELETE FROM pgqueue_jobpayload AS payload USING deleted WHERE payload.job_id = deleted.id
),
results AS (
    DELETE FROM pgqueue_jobresult AS result USING deleted WHERE result.job_id = deleted.id
),
attempts AS (
    DELETE FROM pgqueue_attempt AS attempt USING deleted WHERE attempt.job_id = deleted.id
),
effects AS (
    DELETE FROM pgqueue_effect AS effect USING deleted WHERE effect.job_id = deleted.id
),
probes AS (
    DELETE FROM pgqueue_probe AS probe USING deleted WHERE probe.job_id = deleted.id
),
requests AS (
    DELETE FROM pgqueue_approvalrequest AS request
    USING deleted
    WHERE request.target_kind = 'job'
        AND request.target_id = deleted.id::text
        AND (request.state <> 'waiting' OR request.expires_at <= statement_timestamp())
)
SELECT
    (SELECT max(looked.id) FROM looked),
    (SELECT count(*) FROM looked),
    (SELECT count(*) FROM deleted)
