-- Tell a lease that somebody's lock kept from being written (still held) from a lost one.
-- Sent after `renew.sql` or an ending left rows out: a new snapshot.
-- The guards stand in a sub-select of their own: in a join, a table whose statistics know no running row makes
-- the planner read the table first and the given rows once for each.
-- Returns: id of the leases still held, whether they have expired, and how many of their effects are unknown.
SELECT mine.id, mine.expired, mine.unknown_effects
FROM unnest(%(ids)s::bigint[], %(fences)s::bigint[]) AS lease (id, fence)
CROSS JOIN LATERAL (
    SELECT job.id, job.lease_until <= statement_timestamp() AS expired, job.unknown_effects
    FROM pgqueue_job AS job
    WHERE job.id = lease.id AND job.fence = lease.fence AND job.worker_id = %(worker_id)s::bigint
    OFFSET 0
) AS mine
