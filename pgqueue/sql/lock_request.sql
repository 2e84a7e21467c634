-- Lock one request for approval, for whoever decides about it. Waits at most lock_timeout.
-- Returns: what was asked for, by whom, and whether it is too late; no row when it is gone.
SELECT
    request.id, request.version, request.state, request.verb, request.target_kind, request.target_id,
    request.version_seen, request.queue, request.task, request.asked_by_id, request.asked_by, request.reason,
    request.ticket, request.params::text AS params, request.idempotency_key, request.expires_at <= statement_timestamp() AS is_expired
FROM pgqueue_approvalrequest AS request
WHERE request.id = %(id)s::bigint
FOR NO KEY UPDATE
