-- Write audit rows, one for each target. They come as JSON: an array for each column would be quoted value by value,
-- and took five times as long.
-- Guard: an idempotency key is applied once (unique index).
-- Returns: id and target of each.
INSERT INTO pgqueue_operatoraction (
    created_at, version_seen, version_found, version_after, verb, target_kind, target_id, outcome, actor_id,
    actor_name, reason, ticket, state_found, idempotency_key, params, facts
)
SELECT
    statement_timestamp(), told.version_seen, told.version_found, told.version_after, told.verb, told.target_kind,
    told.target_id, told.outcome, told.actor_id, told.actor_name, told.reason, told.ticket, told.state_found,
    told.idempotency_key, told.params, told.facts
FROM jsonb_array_elements(%(rows)s::jsonb) WITH ORDINALITY AS sent (row, place)
CROSS JOIN LATERAL jsonb_to_record(sent.row) AS told (
    version_seen bigint, version_found bigint, version_after bigint, verb text, target_kind text, target_id text,
    outcome text, actor_id text, actor_name text, reason text, ticket text, state_found text, idempotency_key text,
    params jsonb, facts jsonb
)
ORDER BY sent.place
RETURNING id, target_id
