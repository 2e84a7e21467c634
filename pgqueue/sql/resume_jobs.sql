-- Resume the paused jobs of a tenant, task or resource.
-- Guard: id, version seen, paused, and the pause has not ended by itself; under the row's lock.
-- Returns: version after and state; no row when a guard refused.
UPDATE pgqueue_limit AS bound
SET paused_at = NULL, paused_until = NULL, paused_by = NULL, pause_reason = NULL, version = bound.version + 1
WHERE bound.id = %(id)s::text
    AND bound.version = %(version_seen)s::bigint
    AND bound.paused_at IS NOT NULL
    AND (bound.paused_until IS NULL OR bound.paused_until > statement_timestamp())
RETURNING bound.version, 'active', split_part(bound.id, ':', 2)
