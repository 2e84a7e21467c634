-- Claim jobs picked by `pick_laned.sql`; second half of a laned claim, in the same transaction.
-- Transition: pending, retrying -> running.
-- Guard: the row is still waiting and due, nobody holds its lock, no job of its shard key is running, no older
-- one waits that has lost its lease, its queue is not paused: all read under this statement's own snapshot, taken
-- after the key locks were held.
-- The guards stand in a sub-select of their own: in a join, the planner may read all waiting rows for a few ids.
-- COALESCE hides the state from partial indexes: with statistics from before the rows came, one of all waiting rows
-- looks as cheap as the primary key, and would be read from end to end for every id.
-- Writes: the lease, a new fence, version + 1.
-- Returns: the leases with their payload.
WITH candidates AS MATERIALIZED (
    SELECT mine.id
    FROM unnest(%(ids)s::bigint[]) AS picked (id)
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM pgqueue_job AS job
        WHERE job.id = picked.id
            AND coalesce(job.state IN ('pending', 'retrying'), FALSE)
            AND job.run_at <= statement_timestamp()
            AND (
                job.shard_key IS NULL
                OR (
                    NOT EXISTS (
                        SELECT
                        FROM pgqueue_job AS busy
                        WHERE busy.state = 'running' AND busy.queue = job.queue AND busy.shard_key = job.shard_key
                    )
                    AND NOT EXISTS (
                        SELECT
                        FROM pgqueue_job AS recovered
                        WHERE recovered.state IN ('pending', 'retrying')
                            AND recovered.lane = 2
                            AND recovered.queue = job.queue
                            AND recovered.shard_key = job.shard_key
                            AND recovered.id < job.id
                    )
                )
            )
            AND NOT EXISTS (
                SELECT
                FROM pgqueue_queue AS paused
                WHERE paused.name = job.queue
                    AND paused.paused_at IS NOT NULL
                    AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
            )
        FOR NO KEY UPDATE OF job SKIP LOCKED
    ) AS mine
),
claimed AS (
    UPDATE pgqueue_job AS job
    SET state = 'running',
        version = job.version + 1,
        fence = nextval('pgqueue_fence'),
        worker_id = %(worker_id)s::bigint,
        claimed_at = statement_timestamp(),
        lease_until = statement_timestamp() + make_interval(secs => %(lease_seconds)s::float8)
    FROM candidates
    WHERE job.id = candidates.id
    RETURNING
        job.id, job.worker_id, job.fence, job.version, job.queue, job.task, job.priority, job.lane, job.attempts,
        job.max_attempts, job.lease_losses, job.max_run_seconds, job.recovery, job.tenant, job.shard_key,
        job.operation_key, job.created_at, job.run_at
)
SELECT
    claimed.id, claimed.worker_id, claimed.fence, claimed.version, claimed.queue, claimed.task, claimed.priority,
    claimed.lane, claimed.attempts, claimed.max_attempts, claimed.lease_losses, claimed.max_run_seconds,
    claimed.recovery, claimed.tenant, claimed.shard_key, claimed.operation_key, claimed.created_at, claimed.run_at,
    payload.args::text AS args, payload.kwargs::text AS kwargs
FROM claimed
LEFT JOIN pgqueue_jobpayload AS payload ON payload.job_id = claimed.id
ORDER BY claimed.priority DESC, claimed.run_at, claimed.id
