-- Put back what `read_guards.sql` read: SET LOCAL outlives the savepoint it was given in.
SELECT
    set_config('statement_timeout', %(statement_timeout)s::text, true),
    set_config('idle_in_transaction_session_timeout', %(idle_in_transaction_session_timeout)s::text, true),
    set_config('enable_seqscan', %(enable_seqscan)s::text, true),
    set_config('enable_bitmapscan', %(enable_bitmapscan)s::text, true),
    set_config('enable_hashjoin', %(enable_hashjoin)s::text, true),
    set_config('enable_mergejoin', %(enable_mergejoin)s::text, true),
    set_config('jit', %(jit)s::text, true),
    set_config('plan_cache_mode', %(plan_cache_mode)s::text, true)
