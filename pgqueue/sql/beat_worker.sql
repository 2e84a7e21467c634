-- Say that a worker process is alive. For people: leases do not depend on it.
-- Returns: nothing.
UPDATE pgqueue_worker
SET heartbeat_at = statement_timestamp(),
    draining = %(draining)s::bool,
    stopped_at = CASE WHEN %(stopped)s::bool THEN statement_timestamp() END
WHERE id = %(worker_id)s::bigint
