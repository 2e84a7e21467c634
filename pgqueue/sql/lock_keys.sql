-- Lock business keys for the transaction, in one order for everybody: two that want the same keys wait, and never
-- for each other. Waits. The seed keeps them apart from the keys that claims lock.
SELECT pg_advisory_xact_lock(sorted.key)
FROM (
    SELECT DISTINCT hashtextextended(given.name, 1) AS key
    FROM unnest(%(keys)s::text[]) AS given (name)
    ORDER BY key
) AS sorted
