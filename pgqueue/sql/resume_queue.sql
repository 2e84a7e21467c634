-- Resume a paused queue.
-- Guard: name, version seen, paused, and the pause has not ended by itself; under the row's lock.
-- Returns: version after and state; no row when a guard refused.
UPDATE pgqueue_queue AS queue
SET paused_at = NULL, paused_until = NULL, paused_by = NULL, pause_reason = NULL, version = queue.version + 1
WHERE queue.name = %(id)s::text
    AND queue.version = %(version_seen)s::bigint
    AND queue.paused_at IS NOT NULL
    AND (queue.paused_until IS NULL OR queue.paused_until > statement_timestamp())
RETURNING queue.version, 'active', queue.name
