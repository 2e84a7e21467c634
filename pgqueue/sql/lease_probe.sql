-- Take the right to ask about one job whose outcome is unknown. No attempt, limit or key is used.
-- Transition: none; the state stays unknown, version unchanged.
-- Guard: still unknown, due, of a task this worker can ask for, nobody holds its lock.
-- Writes: a new fence, so that only the latest question may be answered; the time after which the question counts as
-- lost and the next one is due.
-- Returns: what the probe is told.
WITH due AS MATERIALIZED (
    SELECT job.id
    FROM pgqueue_job AS job
    WHERE job.state = 'unknown'
        AND job.probe_at <= statement_timestamp()
        AND job.task = ANY (%(tasks)s::text[])
    ORDER BY job.probe_at, job.id
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
),
leased AS (
    UPDATE pgqueue_job AS job
    SET fence = nextval('pgqueue_fence'),
        probes = job.probes + 1,
        probe_at = statement_timestamp() + make_interval(secs => %(timeout_seconds)s::float8)
    FROM due
    WHERE job.id = due.id
    RETURNING job.id, job.fence, job.task, job.queue, job.operation_key, job.probes
)
SELECT
    leased.id, leased.fence, leased.task, leased.queue, leased.operation_key, leased.probes,
    payload.args::text AS args, payload.kwargs::text AS kwargs
FROM leased
LEFT JOIN pgqueue_jobpayload AS payload ON payload.job_id = leased.id
