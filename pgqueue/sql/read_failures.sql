-- Read which errors ended jobs within an hour, three hours, a day and a week.
-- Returns: error class, jobs within each; the most frequent first.
SELECT
    stat.error,
    COALESCE(sum(stat.jobs) FILTER (WHERE stat.minute > statement_timestamp() - interval '1 hour'), 0)::bigint,
    COALESCE(sum(stat.jobs) FILTER (WHERE stat.minute > statement_timestamp() - interval '3 hours'), 0)::bigint,
    COALESCE(sum(stat.jobs) FILTER (WHERE stat.minute > statement_timestamp() - interval '1 day'), 0)::bigint,
    sum(stat.jobs)::bigint
FROM pgqueue_minutestat AS stat
WHERE stat.minute > statement_timestamp() - interval '7 days'
    AND stat.outcome = 'dead'
GROUP BY stat.error
ORDER BY 5 DESC, 1
LIMIT 10
