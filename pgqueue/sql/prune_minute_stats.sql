-- Forget figures that no chart reaches back to.
-- Returns: nothing.
DELETE FROM pgqueue_minutestat
WHERE minute < statement_timestamp() - make_interval(secs => %(retention_seconds)s::float8)
