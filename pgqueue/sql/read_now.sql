-- Read the database's time.
-- Returns: the instant.
SELECT statement_timestamp()
