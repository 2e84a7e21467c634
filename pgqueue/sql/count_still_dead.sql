-- Count the jobs that are dead now with given errors, by when they ended: those that nobody has requeued since.
-- Capped for each error, the latest first, so that a table full of dead jobs costs no more.
-- Returns: error class, jobs within an hour, three hours, a day and a week.
SELECT
    wanted.error,
    count(*) FILTER (WHERE dead.finished_at > statement_timestamp() - interval '1 hour'),
    count(*) FILTER (WHERE dead.finished_at > statement_timestamp() - interval '3 hours'),
    count(*) FILTER (WHERE dead.finished_at > statement_timestamp() - interval '1 day'),
    count(*) FILTER (WHERE dead.finished_at > statement_timestamp() - interval '7 days')
FROM unnest(%(errors)s::text[]) AS wanted (error)
CROSS JOIN LATERAL (
    SELECT job.finished_at
    FROM pgqueue_job AS job
    WHERE job.state = 'dead' AND job.last_error_class = wanted.error
    ORDER BY job.id DESC
    LIMIT %(cap)s::int
) AS dead
GROUP BY wanted.error
