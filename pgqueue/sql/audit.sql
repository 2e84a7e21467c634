-- Write audit rows, one for each target.
-- Guard: an idempotency key is applied once (unique index).
-- Returns: id and target of each.
INSERT INTO pgqueue_operatoraction (
    created_at, version_seen, version_found, version_after, verb, target_kind, target_id, outcome, actor_id,
    actor_name, reason, ticket, state_found, idempotency_key, params, facts
)
SELECT
    statement_timestamp(), told.version_seen, told.version_found, told.version_after, told.verb, told.target_kind,
    told.target_id, told.outcome, told.actor_id, told.actor_name, told.reason, told.ticket, told.state_found,
    told.idempotency_key, told.params::jsonb, told.facts::jsonb
FROM unnest(
    %(version_seen)s::bigint[], %(version_found)s::bigint[], %(version_after)s::bigint[], %(verb)s::text[],
    %(target_kind)s::text[], %(target_id)s::text[], %(outcome)s::text[], %(actor_id)s::text[],
    %(actor_name)s::text[], %(reason)s::text[], %(ticket)s::text[], %(state_found)s::text[],
    %(idempotency_key)s::text[], %(params)s::text[], %(facts)s::text[]
) WITH ORDINALITY AS told (
    version_seen, version_found, version_after, verb, target_kind, target_id, outcome, actor_id, actor_name, reason,
    ticket, state_found, idempotency_key, params, facts, place
)
ORDER BY told.place
RETURNING id, target_id
