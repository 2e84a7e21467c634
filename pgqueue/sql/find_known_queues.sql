-- Which of some names are queues that a job was ever seen in: those with a row, and those with a job that waits.
-- Scalar sub-selects: of EXISTS, the planner may hash all waiting jobs. Writes nothing.
-- Returns: a row (name text) for each name that is known.
SELECT wanted.name
FROM unnest(%(names)s::text[]) AS wanted (name)
WHERE (SELECT true FROM pgqueue_queue AS queue WHERE queue.name = wanted.name) IS NOT NULL
    OR (
        SELECT true
        FROM (VALUES (0::smallint), (2::smallint), (3::smallint)) AS lanes (lane)
        CROSS JOIN LATERAL (
            SELECT job.queue
            FROM pgqueue_job AS job
            WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2, 3) AND job.lane = lanes.lane
                AND job.queue = wanted.name
            ORDER BY job.queue
            LIMIT 1
        ) AS waiting
        LIMIT 1
    ) IS NOT NULL
    OR (
        SELECT true
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority >= -100
            AND job.queue = wanted.name
        ORDER BY job.queue
        LIMIT 1
    ) IS NOT NULL
