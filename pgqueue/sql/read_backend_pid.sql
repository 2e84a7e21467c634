-- Read the process id of the server behind this connection. A pooler tells its clients another one.
-- Returns: pid.
SELECT pg_backend_pid()
