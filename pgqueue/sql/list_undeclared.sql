-- Tell which of the limits that the settings declare have no row, or one that says something else, and whether there
-- are limits to let go of; those that an operator has changed are left out. No locks: a worker that starts with limits
-- that stand as they are waits for nobody.
-- Returns: ids to declare, and whether any is to be forgotten.
SELECT
    ARRAY(
        SELECT given.id
        FROM jsonb_to_recordset(%(limits)s::jsonb) AS given (
            id text, max_running int, rate_per_second float8, burst int, weight int
        )
        LEFT JOIN pgqueue_limit AS bound ON bound.id = given.id
        WHERE bound.id IS NULL
            OR (
                bound.version = 0
                AND (bound.max_running, bound.rate_per_second, bound.burst, bound.weight)
                    IS DISTINCT FROM (given.max_running, given.rate_per_second, given.burst, given.weight)
            )
        ORDER BY given.id
    ) AS ids,
    EXISTS (
        SELECT
        FROM pgqueue_limit AS bound
        WHERE bound.version = 0
            AND bound.id NOT IN (SELECT given.id FROM jsonb_to_recordset(%(limits)s::jsonb) AS given (id text))
    ) AS has_others
