-- Let each statement of this session's transactions see what was committed before it, whatever the database's default.
SELECT set_config('default_transaction_isolation', 'read committed', false)
