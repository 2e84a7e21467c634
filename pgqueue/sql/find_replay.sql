-- Find the applied actions of idempotency keys. Sent after the targets' locks are held: a new snapshot sees
-- what the sessions before us committed.
-- Returns: key, verb, target and instant of the action, and whether its params are those given; no row for a key that
-- is new.
SELECT
    action.idempotency_key, action.id, action.verb, action.target_kind, action.target_id, action.version_after,
    action.created_at, action.params = asked.params::jsonb AS same_params
FROM unnest(%(idempotency_key)s::text[], %(params)s::text[]) AS asked (idempotency_key, params)
JOIN pgqueue_operatoraction AS action
    ON action.idempotency_key = asked.idempotency_key AND action.outcome = 'applied'
