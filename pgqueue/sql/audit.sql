-- Write one audit row.
-- Guard: an idempotency key is applied once (unique index).
-- Returns: id, created_at.
INSERT INTO pgqueue_operatoraction (
    created_at, version_seen, version_found, version_after, verb, target_kind, target_id, outcome, actor_id,
    actor_name, reason, ticket, state_found, idempotency_key, params, facts
)
VALUES (
    statement_timestamp(), %(version_seen)s::bigint, %(version_found)s::bigint, %(version_after)s::bigint,
    %(verb)s::text, %(target_kind)s::text, %(target_id)s::text, %(outcome)s::text, %(actor_id)s::text,
    %(actor_name)s::text, %(reason)s::text, %(ticket)s::text, %(state_found)s::text,
    %(idempotency_key)s::text, %(params)s::jsonb, %(facts)s::jsonb
)
RETURNING id, created_at
