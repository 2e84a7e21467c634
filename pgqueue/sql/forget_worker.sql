-- Count a worker process that nobody hears as stopped. Its row goes with the others, after WORKER_RETENTION_SECONDS.
-- Transition: none; version + 1.
-- Guard: id, version seen, not stopped, silent for its whole lease, without leases as this statement sees them; under
-- the row's lock.
-- Returns: version after and state, no queue; no row when a guard refused.
UPDATE pgqueue_worker AS worker
SET stopped_at = statement_timestamp(), version = worker.version + 1
WHERE worker.id = %(id)s::bigint
    AND worker.version = %(version_seen)s::bigint
    AND worker.stopped_at IS NULL
    AND worker.heartbeat_at < statement_timestamp() - make_interval(secs => worker.lease_seconds)
    AND NOT EXISTS (SELECT FROM pgqueue_job AS job WHERE job.state = 'running' AND job.worker_id = worker.id)
RETURNING worker.version, 'stopped' AS state, '' AS queue
