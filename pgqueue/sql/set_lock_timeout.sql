-- Bound how long this transaction waits for a lock. SET LOCAL in function form.
SELECT set_config('lock_timeout', %(timeout_ms)s::text, true)
