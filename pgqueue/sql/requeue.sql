-- Requeue jobs that ended without success.
-- Transition: dead, cancelled -> pending, due now or after a delay. Attempts are kept; where they were used up, one more is allowed.
-- Lost leases start anew: a person has looked at the job.
-- Guard: id, version seen, state, one more attempt fits its column, no effect was given up as unknown,
-- not purged, not compensated; under the row's lock.
-- The state stands in a sub-select, so that the rows are read by their ids.
-- Returns: each job that was changed, its version after, state and queue; none that a guard refused.
UPDATE pgqueue_job AS job
SET state = 'pending',
    version = job.version + 1,
    run_at = statement_timestamp() + make_interval(secs => asked.delay_seconds),
    max_attempts = GREATEST(job.max_attempts, job.attempts + 1),
    lease_losses = 0,
    lane = CASE WHEN job.tenant IS NULL AND job.shard_key IS NULL AND job.resource IS NULL THEN 0 ELSE 1 END,
    stop_requested_at = NULL,
    started_at = NULL,
    finished_at = NULL
FROM unnest(%(id)s::bigint[], %(version_seen)s::bigint[], %(delay_seconds)s::float8[])
    AS asked (id, version_seen, delay_seconds)
WHERE job.id = asked.id
    AND job.version = asked.version_seen
    AND (SELECT job.state) IN ('dead', 'cancelled')
    AND job.attempts < 32767
    AND job.stage <> 'outcome_unknown'
    AND job.purged_at IS NULL
    AND job.compensated_at IS NULL
RETURNING job.id, job.version, job.state, job.queue
