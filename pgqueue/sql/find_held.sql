-- Tell a lease that somebody's lock kept from being written (still held) from a lost one.
-- Sent after `renew.sql` or an ending left rows out: a new snapshot.
-- Returns: id of the leases still held, and whether they have expired.
SELECT job.id, job.lease_until <= statement_timestamp() AS expired
FROM unnest(%(ids)s::bigint[], %(fences)s::bigint[]) AS mine (id, fence)
JOIN pgqueue_job AS job ON job.id = mine.id
WHERE job.fence = mine.fence AND job.worker_id = %(worker_id)s::bigint
