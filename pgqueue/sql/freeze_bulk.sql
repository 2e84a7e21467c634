-- Freeze a set of jobs for a bulk action, each with the version seen: what matches later is not in it.
-- Writes: the bulk action and its items.
-- Returns: id of the bulk action.
WITH frozen (id) AS (
    INSERT INTO pgqueue_bulkaction (
        id, created_at, state, verb, actor_id, actor_name, filter, size, capped, spread_seconds,
        reason, ticket
    )
    VALUES (
        gen_random_uuid(), statement_timestamp(), 'frozen', %(verb)s::text, %(actor_id)s::text, %(actor_name)s::text,
        %(filter)s::text, cardinality(%(ids)s::bigint[]), %(capped)s::bool, 0,
        '', ''
    )
    RETURNING id
),
filled (bulk_id) AS (
    INSERT INTO pgqueue_bulkitem (bulk_id, job_id, version_seen, position)
    SELECT frozen.id, seen.job_id, seen.version, seen.position
    FROM frozen
    CROSS JOIN unnest(%(ids)s::bigint[], %(versions)s::bigint[]) WITH ORDINALITY AS seen (job_id, version, position)
    RETURNING bulk_id
)
SELECT frozen.id
FROM frozen
