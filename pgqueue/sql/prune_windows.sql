-- Forget windows that ended long ago.
-- Returns: nothing.
DELETE FROM pgqueue_window
WHERE ends_at < statement_timestamp() - make_interval(secs => %(retention_seconds)s::float8)
