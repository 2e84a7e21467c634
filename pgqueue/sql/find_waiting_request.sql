-- Find the request that waits about a target. Sent after the target's lock is held.
-- Returns: its number; no row when none waits.
SELECT request.id
FROM pgqueue_approvalrequest AS request
WHERE request.target_kind = %(target_kind)s::text
    AND request.target_id = %(target_id)s::text
    AND request.state = 'waiting'
    AND request.expires_at > statement_timestamp()
ORDER BY request.id DESC
LIMIT 1
