-- Read how long jobs waited and ran, as histograms by steps of time.
-- Returns: number of the step, counted back from now, bucket from 1 on, jobs that waited so long, that ran so long.
SELECT
    floor(extract(epoch FROM statement_timestamp() - stat.minute) / %(step_seconds)s::float8)::int AS back,
    counted.bucket::int, sum(counted.waited)::bigint, sum(counted.ran)::bigint
FROM pgqueue_minutestat AS stat
CROSS JOIN unnest(stat.waits, stat.runs) WITH ORDINALITY AS counted (waited, ran, bucket)
WHERE stat.minute > statement_timestamp() - make_interval(secs => %(step_seconds)s::float8 * %(steps)s::int)
GROUP BY 1, 2
