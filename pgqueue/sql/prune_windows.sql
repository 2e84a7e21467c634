-- Forget windows that ended long ago, among so many rows by number.
-- Guard: ended long ago; a row that somebody holds is passed over.
-- Returns: the highest number looked at, how many were looked at, how many were deleted.
WITH looked AS MATERIALIZED (
    SELECT spent.id
    FROM pgqueue_window AS spent
    WHERE spent.id > %(after_id)s::bigint
    ORDER BY spent.id
    LIMIT %(limit)s::int
),
old AS MATERIALIZED (
    SELECT spent.id
    FROM pgqueue_window AS spent
    WHERE spent.id = ANY (ARRAY(SELECT looked.id FROM looked))
        AND spent.ends_at < statement_timestamp() - make_interval(secs => %(retention_seconds)s::float8)
    FOR UPDATE SKIP LOCKED
),
deleted AS (
    DELETE FROM pgqueue_window AS spent
    USING old
    WHERE spent.id = old.id
    RETURNING spent.id
)
SELECT
    (SELECT max(looked.id) FROM looked),
    (SELECT count(*) FROM looked),
    (SELECT count(*) FROM deleted)
