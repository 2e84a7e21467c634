-- Set how many jobs of a queue, tenant, task or resource may start: so many a second, and so many at once after a
-- rest; null is any number. A new rate begins with a full bucket, a changed one with what was left.
-- Guard: id, version seen; under the row's lock.
-- Returns: version after and state; no row when a guard refused.
UPDATE pgqueue_limit AS bound
SET rate_per_second = %(rate_per_second)s::float8,
    burst = %(burst)s::int,
    tokens = CASE WHEN %(burst)s::int IS NOT NULL THEN LEAST(
        %(burst)s::int,
        pgqueue_tokens(bound.tokens, bound.rate_per_second, bound.burst, bound.refilled_at)
    ) END,
    refilled_at = CASE WHEN %(burst)s::int IS NOT NULL THEN statement_timestamp() END,
    version = bound.version + 1
WHERE bound.id = %(id)s::text
    AND bound.version = %(version_seen)s::bigint
RETURNING
    bound.version,
    CASE WHEN bound.paused_at IS NULL OR bound.paused_until <= statement_timestamp() THEN 'active' ELSE 'paused' END,
    split_part(bound.id, ':', 2)
