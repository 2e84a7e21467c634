-- Write down a started worker process.
-- Returns: its id, never given to another process.
INSERT INTO pgqueue_worker (
    started_at, heartbeat_at, lease_seconds, pid, slots, draining, host, version, release, queues, excluded_queues, tasks,
    parent_id
)
VALUES (
    statement_timestamp(), statement_timestamp(), %(lease_seconds)s::float8, %(pid)s::int, %(slots)s::int, false,
    %(host)s::text, 1, %(release)s::text, %(queues)s::jsonb, %(excluded)s::jsonb, %(tasks)s::jsonb,
    %(parent_id)s::bigint
)
RETURNING id
