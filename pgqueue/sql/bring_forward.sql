-- Make the waiting job due that would be due next, as if a test had waited for it.
-- Transition: none; version unchanged, as by the passing of time.
-- Writes: run_at.
-- Returns: id; no row when no job of a known task is waiting for its time.
UPDATE pgqueue_job AS job
SET run_at = statement_timestamp()
WHERE job.id = (
    SELECT next.id
    FROM pgqueue_job AS next
    WHERE next.state IN ('pending', 'retrying')
        AND next.run_at > statement_timestamp()
        AND next.task = ANY (%(tasks)s::text[])
        AND (%(queues)s::text[] IS NULL OR next.queue = ANY (%(queues)s::text[]))
    ORDER BY next.run_at, next.priority DESC, next.id
    LIMIT 1
)
RETURNING job.id
