-- Lock one job for an operator's action. Waits at most lock_timeout.
-- Returns: what the verb decides from and the audit records; no row when the job is gone.
SELECT
    job.id, job.version, job.state, job.queue, job.task, job.tenant, job.shard_key, job.recovery, job.stage,
    job.unknown_effects, job.attempts, job.max_attempts, job.lease_losses, job.fence, job.worker_id,
    (extract(epoch FROM job.lease_until) - extract(epoch FROM statement_timestamp()))::float8 AS lease_seconds_left,
    job.stop_requested_at IS NOT NULL AS stop_requested, job.held_from, job.blocks_key, job.operation_key,
    job.last_error_class,
    COALESCE(job.replay_until > statement_timestamp(), false) AS replay_safe, job.probe_at, job.taken_by,
    job.snoozed_until, job.purged_at IS NOT NULL AS is_purged, job.compensated_at IS NOT NULL AS is_compensated
FROM pgqueue_job AS job
WHERE job.id = %(id)s::bigint
FOR NO KEY UPDATE
