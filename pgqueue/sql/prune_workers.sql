-- Forget workers that stopped or fell silent long ago, among so many rows by number. Recovery needs no worker row.
-- Guard: silent for long; a row that somebody holds is passed over.
-- Returns: the highest number looked at, how many were looked at, how many were deleted.
WITH looked AS MATERIALIZED (
    SELECT worker.id
    FROM pgqueue_worker AS worker
    WHERE worker.id > %(after_id)s::bigint
    ORDER BY worker.id
    LIMIT %(limit)s::int
),
old AS MATERIALIZED (
    SELECT worker.id
    FROM pgqueue_worker AS worker
    WHERE worker.id = ANY (ARRAY(SELECT looked.id FROM looked))
        AND worker.heartbeat_at < statement_timestamp() - make_interval(secs => %(retention_seconds)s::float8)
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM pgqueue_worker AS worker
    USING old
    WHERE worker.id = old.id
    RETURNING worker.id
)
SELECT
    (SELECT max(looked.id) FROM looked),
    (SELECT count(*) FROM looked),
    (SELECT count(*) FROM deleted)
