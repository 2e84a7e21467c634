-- Lock one bulk action, for whoever asks that it be approved. Waits at most lock_timeout.
-- Returns: its state, verb, size and filter; no row when it is gone.
SELECT bulk.state, bulk.verb, bulk.size, bulk.filter
FROM pgqueue_bulkaction AS bulk
WHERE bulk.id = %(id)s::uuid
FOR NO KEY UPDATE
