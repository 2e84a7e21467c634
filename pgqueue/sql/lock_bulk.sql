-- Lock a bulk action for one chunk of its rows: a stop comes between two. One whose chunk is under way is passed over.
-- Returns: verb, reason, ticket, size, seconds to spread over; no row when it is gone, or locked.
SELECT bulk.verb, bulk.reason, bulk.ticket, bulk.size, bulk.spread_seconds
FROM pgqueue_bulkaction AS bulk
WHERE bulk.id = %(id)s::uuid
FOR NO KEY UPDATE SKIP LOCKED
