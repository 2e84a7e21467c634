-- Let the transaction that has begun write nothing, and bound its statements, which are not worth compiling: the
-- planner's estimate of a capped count knows nothing of the cap. Undone when it is rolled back.
-- Returns: nothing of use.
SELECT
    set_config('transaction_read_only', 'on', true),
    set_config('jit', 'off', true),
    set_config('statement_timeout', %(timeout_ms)s::text, true)
