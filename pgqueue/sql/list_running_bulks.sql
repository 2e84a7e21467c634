-- List the bulk actions that run, those that have run for longest first: workers go on with them. No locks.
-- Returns: id, verb, and who started it.
SELECT bulk.id, bulk.verb, bulk.started_by_id
FROM pgqueue_bulkaction AS bulk
WHERE bulk.state = 'running'
ORDER BY bulk.started_at
LIMIT %(limit)s::int
