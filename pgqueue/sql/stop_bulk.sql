-- Stop a bulk action: rows not yet acted on stay as they are. Waits for the chunk under way.
-- Transition: running -> stopped.
-- Guard: it runs.
-- Returns: id; no row when the guard refused.
UPDATE pgqueue_bulkaction AS bulk
SET state = 'stopped', stopped_by = %(stopped_by)s::text, finished_at = statement_timestamp()
WHERE bulk.id = %(id)s::uuid
    AND bulk.state = 'running'
RETURNING bulk.id
