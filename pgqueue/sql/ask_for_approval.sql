-- Ask for somebody else's approval of a verb. The target is locked, and was found to allow the verb.
-- Transition: none -> waiting.
-- Guard: an idempotency key asks once (unique index).
-- Writes: the request.
-- Returns: id.
INSERT INTO pgqueue_approvalrequest (
    created_at, expires_at, version, version_seen, state, verb, target_kind, target_id, queue, task, asked_by_id,
    asked_by, reason, ticket, params, idempotency_key
)
VALUES (
    statement_timestamp(), statement_timestamp() + make_interval(secs => %(valid_seconds)s::float8), 1,
    %(version_seen)s::bigint, 'waiting', %(verb)s::text, %(target_kind)s::text, %(target_id)s::text, %(queue)s::text,
    %(task)s::text, %(actor_id)s::text, %(actor_name)s::text, %(reason)s::text, %(ticket)s::text, %(params)s::jsonb,
    %(idempotency_key)s::text
)
RETURNING id
