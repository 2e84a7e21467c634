-- Whether a tenant or a resource is known: it has a row, or one of the waiting jobs that are looked at is of it.
-- At most `cap` jobs are looked at. Writes nothing. Returns one row (is_known boolean).
SELECT
    EXISTS (SELECT FROM pgqueue_limit AS bound WHERE bound.id = %(kind)s::text || ':' || %(name)s::text)
    OR EXISTS (
        SELECT
        FROM (
            SELECT job.tenant, job.resource
            FROM pgqueue_job AS job
            WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority >= -100
            LIMIT %(cap)s::int
        ) AS waiting
        WHERE CASE WHEN %(kind)s::text = 'tenant' THEN waiting.tenant ELSE waiting.resource END = %(name)s::text
    )
