-- Complete jobs.
-- Transition: running -> succeeded.
-- Guard: id, fence, worker_id; no effect with an unknown outcome. An expired lease that nobody took over still matches: late is not lost.
-- `settle_unknown.sql` settles those of which an effect is unknown.
-- Rows whose lock somebody holds are left out, and asked again by `find_held.sql`.
-- Writes: the job; its result when there is one; an attempt row unless it was the first and went well.
-- From here to its end a longer transaction holds the row's lock: with `hold_ms`, not null there, the server ends its
-- session once it has idled for that long, or for the session's own shorter time; and names the session after the job
-- and its fence, unless a pooler stands in between (`backend_pid` is not the server's). Both are as before after it.
-- The guards stand in a sub-select of their own: in a join, a table whose statistics know no running row makes
-- the planner read the table first and the given rows once for each.
-- Returns: id, state and the instant of the jobs completed; an id left out was not.
WITH owned AS MATERIALIZED (
    SELECT mine.id, ending.run_seconds, ending.result
    FROM unnest(
        %(ids)s::bigint[], %(fences)s::bigint[], %(run_seconds)s::float8[], %(results)s::jsonb[]
    ) AS ending (id, fence, run_seconds, result)
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM pgqueue_job AS job
        WHERE job.id = ending.id
            AND job.fence = ending.fence
            AND job.worker_id = %(worker_id)s::bigint
            AND job.unknown_effects = 0
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS mine
),
completed AS (
    UPDATE pgqueue_job AS job
    SET state = 'succeeded',
        version = job.version + 1,
        attempts = job.attempts + 1,
        worker_id = NULL,
        lease_until = NULL,
        settled_by = %(worker_id)s::bigint,
        started_at = statement_timestamp() - make_interval(secs => owned.run_seconds),
        finished_at = statement_timestamp()
    FROM owned
    WHERE job.id = owned.id
    RETURNING
        job.id, job.fence, job.state, job.stage, job.attempts, job.lease_losses, job.claimed_at, job.started_at,
        job.finished_at, owned.result
),
results AS (
    INSERT INTO pgqueue_jobresult (job_id, value)
    SELECT completed.id, completed.result
    FROM completed
    WHERE completed.result IS NOT NULL
),
attempts AS (
    INSERT INTO pgqueue_attempt (
        job_id, fence, worker_id, claimed_at, started_at, ended_at, number, outcome, stage
    )
    SELECT
        completed.id, completed.fence, %(worker_id)s::bigint, completed.claimed_at, completed.started_at,
        completed.finished_at, completed.attempts, 'succeeded', completed.stage
    FROM completed
    WHERE completed.attempts > 1 OR completed.lease_losses > 0
)
SELECT
    completed.id, completed.state,
    CASE
        WHEN %(hold_ms)s::int IS NULL OR (
            set_config(
                'idle_in_transaction_session_timeout',
                LEAST(
                    NULLIF(
                        extract(epoch FROM current_setting('idle_in_transaction_session_timeout')::interval) * 1000, 0
                    )::int,
                    %(hold_ms)s::int
                )::text,
                true
            ) IS NOT NULL
            AND set_config(
                'application_name',
                CASE
                    WHEN pg_backend_pid() = %(backend_pid)s::int
                        THEN 'pgqueue job=' || completed.id || ' fence=' || completed.fence
                    ELSE current_setting('application_name')
                END,
                true
            ) IS NOT NULL
        ) THEN date_part('epoch', statement_timestamp())
    END AS written_epoch
FROM completed
