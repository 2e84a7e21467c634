-- Ask a worker process to end once what it runs has ended. It hears that with its next heartbeat.
-- Transition: none; version + 1.
-- Guard: id, version seen, not stopped, heard within its lease, not draining yet, not asked before; under the
-- row's lock.
-- Returns: version after and state, no queue; no row when a guard refused.
UPDATE pgqueue_worker AS worker
SET drain_requested_at = statement_timestamp(), version = worker.version + 1
WHERE worker.id = %(id)s::bigint
    AND worker.version = %(version_seen)s::bigint
    AND worker.stopped_at IS NULL
    AND worker.heartbeat_at >= statement_timestamp() - make_interval(secs => worker.lease_seconds)
    AND NOT worker.draining
    AND worker.drain_requested_at IS NULL
RETURNING worker.version, 'draining' AS state, '' AS queue
