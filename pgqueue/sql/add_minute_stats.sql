-- Add what a worker ended to the figures of this minute. Histograms add up, whoever counted them.
-- Returns: nothing.
INSERT INTO pgqueue_minutestat AS stat (minute, queue, task, outcome, error, jobs, waits, runs)
SELECT
    date_trunc('minute', statement_timestamp()), given.queue, given.task, given.outcome, given.error, given.jobs,
    given.waits, given.runs
FROM jsonb_to_recordset(%(stats)s::jsonb) AS given (
    queue text, task text, outcome text, error text, jobs int, waits int[], runs int[]
)
ORDER BY given.queue, given.task, given.outcome, given.error
ON CONFLICT (minute, queue, task, outcome, error) DO UPDATE
SET jobs = stat.jobs + excluded.jobs,
    waits = ARRAY (
        SELECT COALESCE(kept.jobs, 0) + COALESCE(kept.more, 0)
        FROM unnest(stat.waits, excluded.waits) WITH ORDINALITY AS kept (jobs, more, bucket)
        ORDER BY kept.bucket
    ),
    runs = ARRAY (
        SELECT COALESCE(kept.jobs, 0) + COALESCE(kept.more, 0)
        FROM unnest(stat.runs, excluded.runs) WITH ORDINALITY AS kept (jobs, more, bucket)
        ORDER BY kept.bucket
    )
