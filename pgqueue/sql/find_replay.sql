-- Find the applied action of an idempotency key. Sent after the target's lock is held: a new snapshot sees
-- what the session before us committed.
-- Returns: verb, target and instant of the action, and whether its params are those given; no row when the key
-- is new.
SELECT
    action.id, action.verb, action.target_kind, action.target_id, action.version_after, action.created_at,
    action.params = %(params)s::jsonb AS same_params
FROM pgqueue_operatoraction AS action
WHERE action.idempotency_key = %(idempotency_key)s::text AND action.outcome = 'applied'
