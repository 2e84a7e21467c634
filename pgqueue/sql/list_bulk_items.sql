-- List rows of a running bulk action that have no outcome yet, in the order of the job's ids.
-- Returns: job, version seen, and its place in the set, from 1 on.
SELECT item.job_id, item.version_seen, item.position
FROM pgqueue_bulkitem AS item
JOIN pgqueue_bulkaction AS bulk ON bulk.id = item.bulk_id
WHERE item.bulk_id = %(id)s::uuid
    AND item.outcome IS NULL
    AND bulk.state = 'running'
ORDER BY item.job_id
LIMIT %(limit)s::int
