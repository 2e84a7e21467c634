-- Say when the next question is due; never, when a person must decide.
-- Transition: none; version + 1 when a person must decide.
-- The job's row is locked by `lock_probed.sql` in the same transaction.
UPDATE pgqueue_job AS job
SET probe_at = statement_timestamp() + make_interval(secs => %(delay_seconds)s::float8),
    version = job.version + (%(delay_seconds)s::float8 IS NULL)::int
WHERE job.id = %(id)s::bigint
