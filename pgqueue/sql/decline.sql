-- Decline what is asked for, as its asker may too.
-- Transition: waiting -> declined.
-- Guard: id, version seen, state; under the row's lock.
-- Returns: version after, state, and the target's queue; no row when a guard refused.
UPDATE pgqueue_approvalrequest AS request
SET state = 'declined',
    version = request.version + 1,
    decided_at = statement_timestamp(),
    decided_by = %(actor_name)s::text
WHERE request.id = %(id)s::bigint
    AND request.version = %(version_seen)s::bigint
    AND request.state = 'waiting'
RETURNING request.version, request.state, COALESCE(request.queue, '')
