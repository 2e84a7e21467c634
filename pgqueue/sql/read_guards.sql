-- Read the settings that `guard_transaction.sql` changes, before it does so inside somebody else's transaction.
-- Returns: one row, a column for each setting.
SELECT
    current_setting('statement_timeout') AS statement_timeout,
    current_setting('idle_in_transaction_session_timeout') AS idle_in_transaction_session_timeout,
    current_setting('enable_seqscan') AS enable_seqscan,
    current_setting('enable_bitmapscan') AS enable_bitmapscan,
    current_setting('enable_hashjoin') AS enable_hashjoin,
    current_setting('enable_mergejoin') AS enable_mergejoin,
    current_setting('jit') AS jit,
    current_setting('plan_cache_mode') AS plan_cache_mode
