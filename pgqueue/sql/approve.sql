-- Approve what somebody else asks for; the same transaction does it, or neither is done.
-- Transition: waiting -> approved.
-- Guard: id, version seen, state, not expired, the approver is known, asked for by somebody else; under the row's lock.
-- Returns: version after, state, and the target's queue; no row when a guard refused.
UPDATE pgqueue_approvalrequest AS request
SET state = 'approved',
    version = request.version + 1,
    decided_at = statement_timestamp(),
    decided_by = %(actor_name)s::text
WHERE request.id = %(id)s::bigint
    AND request.version = %(version_seen)s::bigint
    AND request.state = 'waiting'
    AND request.expires_at > statement_timestamp()
    AND %(actor_id)s::text IS NOT NULL
    AND (request.asked_by_id IS DISTINCT FROM %(actor_id)s::text AND lower(request.asked_by) <> lower(%(actor_name)s::text))
RETURNING request.version, request.state, COALESCE(request.queue, '')
