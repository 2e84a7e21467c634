-- Let go of limits that the settings no longer declare, unless an operator has changed them.
-- Guard: version 0, not declared.
-- Returns: nothing.
DELETE FROM pgqueue_limit
WHERE version = 0 AND id <> ALL (%(ids)s::text[])
