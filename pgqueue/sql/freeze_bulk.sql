-- Freeze the jobs that a query finds for a bulk action, each with its version: what matches later is not in it.
-- The query between the two marks is the console's own and takes the place of the one here, so that what is frozen is
-- what its list finds, read and written by one statement.
-- Writes: the bulk action and its items, numbered in the order of the jobs' ids.
-- Returns: id of the bulk action; no row when there is no such job.
WITH chosen (job_id, version_seen) AS MATERIALIZED (
    /* query */ SELECT job.id, job.version FROM pgqueue_job AS job LIMIT %(cap)s::int + 1 /* query */
),
frozen (id) AS (
    INSERT INTO pgqueue_bulkaction (
        id, created_at, state, verb, actor_id, actor_name, filter, size, capped, spread_seconds,
        reason, ticket, started_by_name, stopped_by
    )
    SELECT
        gen_random_uuid(), statement_timestamp(), 'frozen', %(verb)s::text, %(actor_id)s::text, %(actor_name)s::text,
        %(filter)s::text, LEAST(count(*), %(cap)s::int), count(*) > %(cap)s::int, 0,
        '', '', '', ''
    FROM chosen
    HAVING count(*) > 0
    RETURNING id
),
kept (job_id, version_seen) AS (
    SELECT chosen.job_id, chosen.version_seen FROM chosen LIMIT %(cap)s::int
),
filled AS (
    INSERT INTO pgqueue_bulkitem (bulk_id, job_id, version_seen, position)
    SELECT frozen.id, kept.job_id, kept.version_seen, row_number() OVER (ORDER BY kept.job_id)
    FROM frozen
    CROSS JOIN kept
    ORDER BY kept.job_id
)
SELECT frozen.id
FROM frozen
