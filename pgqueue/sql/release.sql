-- Give back jobs that were claimed and never started.
-- Transition: running -> pending, due as before; -> cancelled when a stop was requested.
-- Guard: id, fence, worker_id; no effect with an unknown outcome.
-- `settle_unknown.sql` settles those of which an effect is unknown.
-- Rows whose lock somebody holds are left out, and asked again by `find_held.sql`.
-- Writes: the job; no attempt is charged.
-- The guards stand in a sub-select of their own: in a join, a table whose statistics know no running row makes
-- the planner read the table first and the given rows once for each.
-- Returns: id, state and the instant of the jobs released; an id left out was not.
WITH owned AS MATERIALIZED (
    SELECT mine.id, mine.target
    FROM unnest(%(ids)s::bigint[], %(fences)s::bigint[]) AS ending (id, fence)
    CROSS JOIN LATERAL (
        SELECT
            job.id,
            CASE WHEN job.stop_requested_at IS NOT NULL THEN 'cancelled' ELSE 'pending' END AS target
        FROM pgqueue_job AS job
        WHERE job.id = ending.id
            AND job.fence = ending.fence
            AND job.worker_id = %(worker_id)s::bigint
            AND job.unknown_effects = 0
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS mine
)
UPDATE pgqueue_job AS job
SET state = owned.target,
    version = job.version + 1,
    worker_id = NULL,
    lease_until = NULL,
    claimed_at = NULL,
    settled_by = %(worker_id)s::bigint,
    finished_at = CASE WHEN owned.target = 'cancelled' THEN statement_timestamp() END
FROM owned
WHERE job.id = owned.id
RETURNING job.id, job.state, date_part('epoch', statement_timestamp()) AS written_epoch
