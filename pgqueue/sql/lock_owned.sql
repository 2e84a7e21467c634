-- Lock a running job that this worker owns, before anything about its effects is read or written.
-- Guard: id, fence, worker_id; where asked for, the lease has not expired.
-- Waits for the lock: what follows in the same transaction reads under a new snapshot.
-- Returns: what decides about an ending, as locked; no row when the job is no longer owned.
SELECT
    job.id, job.recovery, job.unknown_effects, job.stop_requested_at IS NOT NULL AS stop_requested, job.attempts,
    job.max_attempts, COALESCE(job.replay_until > statement_timestamp(), false) AS replay_safe
FROM pgqueue_job AS job
WHERE job.id = %(id)s::bigint
    AND job.fence = %(fence)s::bigint
    AND job.worker_id = %(worker_id)s::bigint
    AND (NOT %(unexpired)s::bool OR job.lease_until > statement_timestamp())
FOR NO KEY UPDATE
