-- Read how many jobs ended, by steps of time and outcome.
-- Returns: number of the step, counted back from now (0 is the current one), outcome, jobs.
SELECT
    floor(extract(epoch FROM statement_timestamp() - stat.minute) / %(step_seconds)s::float8)::int AS back,
    stat.outcome, sum(stat.jobs)::bigint
FROM pgqueue_minutestat AS stat
WHERE stat.minute > statement_timestamp() - make_interval(secs => %(step_seconds)s::float8 * %(steps)s::int)
GROUP BY 1, 2
