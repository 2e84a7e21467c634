-- Pause the jobs of a tenant, task or resource: no claim begun after this commit takes one. Running jobs go on.
-- Guard: id, version seen, not paused; under the row's lock.
-- Returns: version after and state; no row when a guard refused.
UPDATE pgqueue_limit AS bound
SET paused_at = statement_timestamp(),
    paused_until = statement_timestamp() + make_interval(secs => %(for_seconds)s::float8),
    paused_by = %(actor_name)s::text,
    pause_reason = %(reason)s::text,
    version = bound.version + 1
WHERE bound.id = %(id)s::text
    AND bound.version = %(version_seen)s::bigint
    AND (bound.paused_at IS NULL OR bound.paused_until <= statement_timestamp())
RETURNING bound.version, 'paused', split_part(bound.id, ':', 2)
