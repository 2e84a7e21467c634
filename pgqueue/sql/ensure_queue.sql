-- Give a queue its row, so that it can be locked and versioned. Version 0: nobody has acted on it yet.
-- Returns: nothing.
INSERT INTO pgqueue_queue (name, version, created_at)
VALUES (%(id)s::text, 0, statement_timestamp())
ON CONFLICT (name) DO NOTHING
