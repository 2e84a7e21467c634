-- Say that a worker process is alive, and hear what is asked of it. For people: leases do not depend on it.
-- Returns: whether any bulk action runs.
UPDATE pgqueue_worker
SET heartbeat_at = statement_timestamp(),
    draining = %(draining)s::bool,
    stopped_at = CASE WHEN %(stopped)s::bool THEN statement_timestamp() END
WHERE id = %(worker_id)s::bigint
RETURNING EXISTS (SELECT FROM pgqueue_bulkaction AS bulk WHERE bulk.state = 'running')
