-- Forget workers that stopped or fell silent long ago. Recovery needs no worker row.
-- Returns: nothing.
DELETE FROM pgqueue_worker
WHERE heartbeat_at < statement_timestamp() - make_interval(secs => %(retention_seconds)s::float8)
