-- Read whether the server takes writes. What a session's own transaction may do is another matter: a look of the
-- console is read-only anywhere.
-- Returns: whether it is a standby, and whether sessions like this one are read-only by default.
SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')::bool
