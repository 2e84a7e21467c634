-- Forget figures that no chart reaches back to, the oldest first, at most so many.
-- Guard: too old; a row that somebody holds is passed over.
-- Returns: 0, how many were found, how many were deleted.
WITH old AS MATERIALIZED (
    SELECT stat.id
    FROM pgqueue_minutestat AS stat
    WHERE stat.minute < statement_timestamp() - make_interval(secs => %(retention_seconds)s::float8)
    ORDER BY stat.minute
    LIMIT %(limit)s::int
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM pgqueue_minutestat AS stat
    USING old
    WHERE stat.id = old.id
    RETURNING stat.id
)
SELECT
    0::bigint,
    (SELECT count(*) FROM old),
    (SELECT count(*) FROM deleted)
