-- Say that a worker process is alive, and hear what is asked of it. For people: leases do not depend on it. One that
-- was forgotten and comes back is there again.
-- Returns: whether it is asked to drain, and whether any bulk action runs.
UPDATE pgqueue_worker AS worker
SET heartbeat_at = statement_timestamp(),
    draining = %(draining)s::bool,
    stopped_at = CASE WHEN %(stopped)s::bool THEN statement_timestamp() END
WHERE worker.id = %(worker_id)s::bigint
RETURNING
    worker.drain_requested_at IS NOT NULL,
    EXISTS (SELECT FROM pgqueue_bulkaction AS bulk WHERE bulk.state = 'running')
