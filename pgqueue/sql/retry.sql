-- Settle failed attempts that may be tried again.
-- Transition: running -> retrying; -> dead when the attempts are used up; -> cancelled when a stop was requested.
-- Guard: id, fence, worker_id; no effect with an unknown outcome. What decides the target are columns of the locked row.
-- `settle_unknown.sql` settles those of which an effect is unknown.
-- Rows whose lock somebody holds are left out, and asked again by `find_held.sql`.
-- Writes: the job, due after the given delay by the database's clock; the attempt.
-- The guards stand in a sub-select of their own: in a join, a table whose statistics know no running row makes
-- the planner read the table first and the given rows once for each.
-- Returns: id, state and the instant of the jobs settled; an id left out was not.
WITH owned AS MATERIALIZED (
    SELECT
        mine.id, mine.target, ending.run_seconds, ending.delay_seconds, ending.failure_class, ending.error_class,
        ending.message, ending.traceback
    FROM unnest(
        %(ids)s::bigint[], %(fences)s::bigint[], %(run_seconds)s::float8[], %(delay_seconds)s::float8[],
        %(failure_classes)s::text[], %(error_classes)s::text[], %(messages)s::text[], %(tracebacks)s::text[]
    ) AS ending (id, fence, run_seconds, delay_seconds, failure_class, error_class, message, traceback)
    CROSS JOIN LATERAL (
        SELECT
            job.id,
            CASE
                WHEN job.stop_requested_at IS NOT NULL THEN 'cancelled'
                WHEN job.attempts + 1 >= job.max_attempts THEN 'dead'
                ELSE 'retrying'
            END AS target
        FROM pgqueue_job AS job
        WHERE job.id = ending.id
            AND job.fence = ending.fence
            AND job.worker_id = %(worker_id)s::bigint
            AND job.unknown_effects = 0
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS mine
),
settled AS (
    UPDATE pgqueue_job AS job
    SET state = owned.target,
        version = job.version + 1,
        attempts = job.attempts + 1,
        worker_id = NULL,
        lease_until = NULL,
        settled_by = %(worker_id)s::bigint,
        started_at = statement_timestamp() - make_interval(secs => owned.run_seconds),
        run_at = CASE
            WHEN owned.target = 'retrying'
                THEN statement_timestamp() + make_interval(secs => owned.delay_seconds)
            ELSE job.run_at
        END,
        finished_at = CASE WHEN owned.target <> 'retrying' THEN statement_timestamp() END,
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
        settled.id, settled.fence, %(worker_id)s::bigint, settled.claimed_at, settled.started_at,
        statement_timestamp(), settled.attempts, 'failed', settled.stage,
        settled.failure_class, settled.error_class, settled.message, settled.traceback
    FROM settled
)
SELECT settled.id, settled.state, date_part('epoch', statement_timestamp()) AS written_epoch
FROM settled
