-- Renew leases.
-- Transition: running -> running; version unchanged.
-- Guard: id, fence, worker_id; the lease has not expired; nobody holds the row's lock (a row that is being
-- settled is not lost: it is asked again).
-- Writes: lease_until alone, so that the update stays HOT.
-- The guards stand in a sub-select of their own: in a join, a table whose statistics know no running row makes
-- the planner read the table first and the given rows once for each.
-- Returns: id and whether a stop was requested, for each lease still held.
WITH held AS MATERIALIZED (
    SELECT mine.id
    FROM unnest(%(ids)s::bigint[], %(fences)s::bigint[]) AS lease (id, fence)
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM pgqueue_job AS job
        WHERE job.id = lease.id
            AND job.fence = lease.fence
            AND job.worker_id = %(worker_id)s::bigint
            AND job.lease_until > statement_timestamp()
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS mine
)
UPDATE pgqueue_job AS job
SET lease_until = statement_timestamp() + make_interval(secs => %(lease_seconds)s::float8)
FROM held
WHERE job.id = held.id
RETURNING job.id, job.stop_requested_at IS NOT NULL AS stop_requested
