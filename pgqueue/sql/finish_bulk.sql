-- End a bulk action whose rows all have an outcome.
-- Transition: running -> done.
-- Guard: it runs, no row is left.
-- Returns: id; no row when a guard refused.
UPDATE pgqueue_bulkaction AS bulk
SET state = 'done', finished_at = statement_timestamp()
WHERE bulk.id = %(id)s::uuid
    AND bulk.state = 'running'
    AND NOT EXISTS (SELECT FROM pgqueue_bulkitem AS item WHERE item.bulk_id = bulk.id AND item.outcome IS NULL)
RETURNING bulk.id
