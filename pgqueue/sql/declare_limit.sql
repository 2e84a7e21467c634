-- Write down a limit as the settings declare it, unless an operator has changed it.
-- Guard: version 0.
-- Returns: nothing.
INSERT INTO pgqueue_limit AS bound (
    id, version, created_at, max_running, rate_per_second, burst, tokens, refilled_at, weight
)
VALUES (
    %(id)s::text, 0, statement_timestamp(), %(max_running)s::int, %(rate_per_second)s::float8, %(burst)s::int,
    %(burst)s::int, CASE WHEN %(burst)s::int IS NOT NULL THEN statement_timestamp() END, %(weight)s::int
)
ON CONFLICT (id) DO UPDATE
SET max_running = EXCLUDED.max_running,
    rate_per_second = EXCLUDED.rate_per_second,
    burst = EXCLUDED.burst,
    tokens = LEAST(EXCLUDED.tokens, CASE WHEN EXCLUDED.burst IS NOT NULL THEN bound.tokens END),
    refilled_at = CASE
        WHEN EXCLUDED.burst IS NOT NULL THEN COALESCE(bound.refilled_at, EXCLUDED.refilled_at)
    END,
    weight = EXCLUDED.weight
WHERE bound.version = 0
