-- Give a queue, tenant, task or resource the row of its limits, so that it can be locked and versioned. It bounds
-- nothing; version 0: nobody has acted on it yet.
-- Returns: nothing.
INSERT INTO pgqueue_limit (id, version, created_at, weight)
VALUES (%(id)s::text, 0, statement_timestamp(), 1)
ON CONFLICT (id) DO NOTHING
