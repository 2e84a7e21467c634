-- Find what was asked for with an idempotency key. Sent after the target's lock is held.
-- Returns: number of the request, verb, target and instant, and whether its params are those given; no row when
-- nobody has asked with it.
SELECT
    request.id, request.verb, request.target_kind, request.target_id, request.created_at,
    request.params = %(params)s::jsonb AS same_params
FROM pgqueue_approvalrequest AS request
WHERE request.idempotency_key = %(idempotency_key)s::text
