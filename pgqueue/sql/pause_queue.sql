-- Pause a queue: no claim begun after this commit takes from it. Running jobs go on.
-- Guard: name, version seen, not paused; under the row's lock.
-- Returns: version after and state; no row when a guard refused.
UPDATE pgqueue_queue AS queue
SET paused_at = statement_timestamp(),
    paused_until = statement_timestamp() + make_interval(secs => %(for_seconds)s::float8),
    paused_by = %(actor_name)s::text,
    pause_reason = %(reason)s::text,
    version = queue.version + 1
WHERE queue.name = %(id)s::text
    AND queue.version = %(version_seen)s::bigint
    AND (queue.paused_at IS NULL OR queue.paused_until <= statement_timestamp())
RETURNING queue.version, 'paused', queue.name
