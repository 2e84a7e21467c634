-- Read who spent an operation key. Sent after `enqueue_once.sql` gave no row: a new snapshot sees the winner.
-- Returns: job_id, created_at, digest of the arguments it was spent with.
SELECT job_id, created_at, digest
FROM pgqueue_operationkey
WHERE task = %(task)s::text AND key = %(operation_key)s::text
