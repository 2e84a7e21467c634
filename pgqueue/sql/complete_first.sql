-- Complete one job whose first attempt went well and returned nothing, as most do: half the work of `complete.sql`.
-- Transition: running -> succeeded.
-- Guard: id, fence, worker_id; no effect with an unknown outcome; the first attempt, no lease lost.
-- A row whose lock somebody holds is left out.
-- The guards stand in a sub-select, as in `complete.sql`.
-- Writes: the job.
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
RETURNING date_part('epoch', statement_timestamp()) AS written_epoch
