-- Complete one job whose first attempt went well and returned nothing, as most do: half the work of `complete.sql`.
-- Transition: running -> succeeded.
-- Guard: id, fence, worker_id; no effect with an unknown outcome; the first attempt, no lease lost.
-- A row whose lock somebody holds is left out.
-- The guards stand in a sub-select, as in `complete.sql`.
-- Writes: the job. In a longer transaction `hold_ms` bounds it from here on, as in `complete.sql`.
-- Returns: the instant; no row when nothing matched: `complete.sql` may.
UPDATE pgqueue_job AS job
SET state = 'succeeded',
    version = job.version + 1,
    attempts = job.attempts + 1,
    worker_id = NULL,
    lease_until = NULL,
    settled_by = %(worker_id)s::bigint,
    started_at = statement_timestamp() - make_interval(secs => %(run_seconds)s::float8),
    finished_at = statement_timestamp()
WHERE job.id = (
    SELECT mine.id
    FROM pgqueue_job AS mine
    WHERE mine.id = %(id)s::bigint
        AND mine.fence = %(fence)s::bigint
        AND mine.worker_id = %(worker_id)s::bigint
        AND mine.unknown_effects = 0
        AND mine.attempts = 0
        AND mine.lease_losses = 0
    FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING
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
                        THEN 'pgqueue job=' || job.id || ' fence=' || job.fence
                    ELSE current_setting('application_name')
                END,
                true
            ) IS NOT NULL
        ) THEN date_part('epoch', statement_timestamp())
    END AS written_epoch
