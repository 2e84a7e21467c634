-- Settle one ending that leaves an effect unknown, as the decision table says of the locked row.
-- Transition: running -> retrying, unknown.
-- The job's row is locked by `lock_owned.sql` in the same transaction.
-- Writes: the job; the attempt, where the run had started. One that goes to `unknown` is not charged: its run goes
-- on after the verdict.
-- Returns: state and the instant.
WITH settled AS (
    UPDATE pgqueue_job AS job
    SET state = %(target)s::text,
        version = job.version + 1,
        attempts = job.attempts + %(charge)s::int::smallint,
        worker_id = NULL,
        lease_until = NULL,
        settled_by = %(worker_id)s::bigint,
        started_at = statement_timestamp() - make_interval(secs => %(run_seconds)s::float8),
        run_at = CASE
            WHEN %(target)s::text = 'retrying'
                THEN statement_timestamp() + make_interval(secs => %(delay_seconds)s::float8)
            ELSE job.run_at
        END,
        probe_at = CASE WHEN %(probe)s::bool THEN statement_timestamp() END,
        probes = 0,
        last_error_class = COALESCE(%(error_class)s::text, job.last_error_class),
        last_error = COALESCE(%(message)s::text, job.last_error)
    WHERE job.id = %(id)s::bigint
    RETURNING job.id, job.fence, job.state, job.stage, job.attempts, job.claimed_at, job.started_at
),
attempts AS (
    INSERT INTO pgqueue_attempt (
        job_id, fence, worker_id, claimed_at, started_at, ended_at, number, outcome, stage,
        failure_class, error_class, message, traceback
    )
    SELECT
        settled.id, settled.fence, %(worker_id)s::bigint, settled.claimed_at, settled.started_at,
        statement_timestamp(), settled.attempts + 1 - %(charge)s::int,
        CASE WHEN settled.state = 'unknown' THEN 'unknown' ELSE 'failed' END, settled.stage,
        %(failure_class)s::text, %(error_class)s::text, %(message)s::text, %(traceback)s::text
    FROM settled
    WHERE %(error_class)s::text IS NOT NULL
)
SELECT settled.state, statement_timestamp() AS written_at
FROM settled
