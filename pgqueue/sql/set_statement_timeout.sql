-- Bound the statements that follow in this transaction. SET LOCAL in function form: undone with its savepoint.
-- Returns: nothing of use.
SELECT set_config('statement_timeout', %(timeout_ms)s::text, true)
