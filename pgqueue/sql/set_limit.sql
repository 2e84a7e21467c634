-- Set how many jobs of a queue, tenant, task or resource may run at once; null is any number. More that run go on.
-- Guard: id, version seen; under the row's lock.
-- Returns: version after and state; no row when a guard refused.
UPDATE pgqueue_limit AS bound
SET max_running = %(max_running)s::int, version = bound.version + 1
WHERE bound.id = %(id)s::text
    AND bound.version = %(version_seen)s::bigint
RETURNING
    bound.version,
    CASE WHEN bound.paused_at IS NULL OR bound.paused_until <= statement_timestamp() THEN 'active' ELSE 'paused' END,
    split_part(bound.id, ':', 2)
