-- Claim due jobs of the plain lane from the one group that has a mark, behind it. What `claim.sql` does with that mark,
-- in two thirds of its time: most of that is to make ready the parts for a walk and for several groups.
-- Transition: pending, retrying -> running.
-- Guard: the row is still waiting, of this lane, queue, priority and task, due and behind the mark; this worker serves
-- the queue and knows the task; nobody holds its lock; its queue is not paused; neither its queue nor its task is bound
-- in the snapshot of this statement, so that a pause or a limit holds for every claim begun after its commit.
-- Order: run_at, then id.
-- Writes: the lease, a new fence, version + 1.
-- Returns: the leases with their payload, in that order.
WITH candidates AS MATERIALIZED (
    SELECT job.id
    FROM pgqueue_job AS job
    WHERE job.state IN ('pending', 'retrying')
        AND job.lane = 0
        AND job.queue = %(mark_queue)s::text
        AND job.priority * -1 = %(mark_priority)s::smallint * -1
        AND job.task = %(mark_task)s::text
        AND job.run_at <= statement_timestamp()
        AND (job.run_at, job.id) > (to_timestamp(%(mark_epoch)s::float8), %(mark_id)s::bigint)
        AND %(mark_task)s::text = ANY (%(tasks)s::text[])
        AND (%(queues)s::text[] IS NULL OR %(mark_queue)s::text = ANY (%(queues)s::text[]))
        AND %(mark_queue)s::text <> ALL (%(excluded)s::text[])
        AND NOT EXISTS (
            SELECT
            FROM pgqueue_queue AS paused
            WHERE paused.name = %(mark_queue)s::text
                AND paused.paused_at IS NOT NULL
                AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
        )
        AND NOT EXISTS (
            SELECT
            FROM pgqueue_limit AS bound
            WHERE bound.id IN ('queue:' || %(mark_queue)s::text, 'task:' || %(mark_task)s::text)
                AND (bound.max_running IS NOT NULL OR bound.rate_per_second IS NOT NULL OR bound.paused_at IS NOT NULL)
        )
    ORDER BY job.run_at, job.id
    LIMIT %(limit)s::int
    FOR NO KEY UPDATE OF job SKIP LOCKED
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
        job.operation_key, job.created_at, job.run_at, job.replaced_at
)
SELECT
    claimed.id, claimed.worker_id, claimed.fence, claimed.version, claimed.queue, claimed.task, claimed.priority,
    claimed.lane, claimed.attempts, claimed.max_attempts, claimed.lease_losses, claimed.max_run_seconds,
    claimed.recovery, claimed.tenant, claimed.shard_key, claimed.operation_key,
    date_part('epoch', claimed.created_at) AS created_epoch, date_part('epoch', claimed.run_at) AS run_epoch,
    payload.args::text AS args, payload.kwargs::text AS kwargs, claimed.replaced_at
FROM claimed
LEFT JOIN pgqueue_jobpayload AS payload ON payload.job_id = claimed.id
ORDER BY claimed.run_at, claimed.id
