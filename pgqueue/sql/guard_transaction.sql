-- Bound the transaction and pin its plans. SET LOCAL in function form: nothing leaks behind a pooler. With `is_local`
-- false, on a direct connection of the queue's own, so is every statement of the session that is sent by itself.
-- Sequential scans and hash joins are never right here: every statement reaches its rows by an index,
-- also on a table that was filled since the last ANALYZE. With that the generic plan is the custom one, and a prepared
-- statement is planned once: planning a claim takes three times as long as claiming one job.
SELECT
    set_config('statement_timeout', %(timeout_ms)s::text, %(is_local)s::bool),
    set_config('idle_in_transaction_session_timeout', %(timeout_ms)s::text, %(is_local)s::bool),
    set_config('enable_seqscan', 'off', %(is_local)s::bool),
    set_config('enable_bitmapscan', 'off', %(is_local)s::bool),
    set_config('enable_hashjoin', 'off', %(is_local)s::bool),
    set_config('enable_mergejoin', 'off', %(is_local)s::bool),
    set_config('jit', 'off', %(is_local)s::bool),
    set_config('plan_cache_mode', 'force_generic_plan', %(is_local)s::bool)
