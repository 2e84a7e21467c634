-- Lock one row of limits for an operator's action. Waits at most lock_timeout; claims pass over it meanwhile.
-- Returns: what the verb decides from and the audit records.
SELECT
    bound.id, bound.version,
    CASE WHEN bound.paused_at IS NULL OR bound.paused_until <= statement_timestamp() THEN 'active' ELSE 'paused' END
        AS state,
    bound.max_running, bound.rate_per_second, bound.burst, bound.weight, bound.paused_by, bound.pause_reason,
    bound.paused_until
FROM pgqueue_limit AS bound
WHERE bound.id = %(id)s::text
FOR NO KEY UPDATE
