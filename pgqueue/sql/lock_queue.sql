-- Lock one queue for an operator's action. Waits at most lock_timeout.
-- Returns: what the verb decides from and the audit records.
SELECT
    queue.name, queue.version,
    CASE WHEN queue.paused_at IS NULL OR queue.paused_until <= statement_timestamp() THEN 'active' ELSE 'paused' END
        AS state,
    queue.paused_by, queue.pause_reason, queue.paused_until
FROM pgqueue_queue AS queue
WHERE queue.name = %(id)s::text
FOR NO KEY UPDATE
