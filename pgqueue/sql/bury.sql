-- Settle failed attempts that no repetition can help.
-- Transition: running -> dead; -> cancelled when a stop was requested.
-- Guard: id, fence, worker_id; no effect with an unknown outcome. What decides the target are columns of the locked row.
-- `settle_unknown.sql` settles those of which an effect is unknown.
-- Rows whose lock somebody holds are left out, and asked again by `find_held.sql`.
-- Writes: the job, the attempt.
-- The guards stand in a sub-select of their own: in a join, a table whose statistics know no running row makes
-- the planner read the table first and the given rows once for each.
-- Returns: id, state and the instant of the jobs buried; an id left out was not.
WITH owned AS MATERIALIZED (
    SELECT
        mine.id, mine.target, ending.run_seconds, ending.failure_class, ending.error_class, ending.message, ending.traceback
    FROM unnest(
        %(ids)s::bigint[], %(fences)s::bigint[], %(run_seconds)s::float8[], %(failure_classes)s::text[],
        %(error_classes)s::text[], %(messages)s::text[], %(tracebacks)s::text[]
    ) AS ending (id, fence, run_seconds, failure_class, error_class, message, traceback)
    CROSS JOIN LATERAL (
        SELECT job.id, CASE WHEN job.stop_requested_at IS NOT NULL THEN 'cancelled' ELSE 'dead' END AS target
        FROM pgqueue_job AS job
        WHERE job.id = ending.id
            AND job.fence = ending.fence
            AND job.worker_id = %(worker_id)s::bigint
            AND job.unknown_effects = 0
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS mine
),
buried AS (
    UPDATE pgqueue_job AS job
    SET state = owned.target,
        version = job.version + 1,
        attempts = job.attempts + 1,
        worker_id = NULL,
        lease_until = NULL,
        settled_by = %(worker_id)s::bigint,
        started_at = statement_timestamp() - make_interval(secs => owned.run_seconds),
        finished_at = statement_timestamp(),
        last_error_class = owned.error_class,
        last_error = owned.message
    FROM owned
    WHERE job.id = owned.id
    RETURNING
        job.id, job.fence, job.state, job.stage, job.attempts, job.claimed_at, job.started_at, job.finished_at,
        owned.failure_class, owned.error_class, owned.message, owned.traceback
),
attempts AS (
    INSERT INTO pgqueue_attempt (
        job_id, fence, worker_id, claimed_at, started_at, ended_at, number, outcome, stage,
        failure_class, error_class, message, traceback
    )
    SELECT
        buried.id, buried.fence, %(worker_id)s::bigint, buried.claimed_at, buried.started_at,
        buried.finished_at, buried.attempts, 'failed', buried.stage,
        buried.failure_class, buried.error_class, buried.message, buried.traceback
    FROM buried
)
SELECT buried.id, buried.state, date_part('epoch', statement_timestamp()) AS written_epoch
FROM buried
