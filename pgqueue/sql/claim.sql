-- Claim due jobs of the plain lane.
-- Transition: pending, retrying -> running.
-- Guard: the row is still waiting, of this lane and queue, due, of a task this worker knows; nobody holds
-- its lock; its queue is not paused; neither its queue nor its task is bound in the snapshot of this statement, so
-- that a pause or a limit holds for every claim begun after its commit. What is bound, `pick_bound.sql` proposes.
-- Order: priority from high to low, or from the lowest up; then run_at, then id, whatever the queue and the task.
-- The walk over live (queue, priority, task) groups, each found with its oldest row by one step of the index from a
-- place before all of them (each mention of the table costs the planner as much as claiming a row), keeps future rows of a higher priority, and rows of tasks that are unknown here, out of the way.
-- A priority with one group is read in its order. Of several, `merged` reads so many of the oldest rows of each without
-- a lock, sorts them, and gives them away up to the first that may not be followed by the next: the last one read of
-- its group. From there it reads on, if it has to.
-- Rows are locked one by one under the outer LIMIT: no sort stands above the lock, none is locked in vain.
-- Marks: with some given there is no walk; only their groups are looked at, behind their marks, so that rows which were
-- claimed and are not yet vacuumed away are not read over. What stands elsewhere, a claim without marks finds.
-- COALESCE hides the state from partial indexes: see `claim_picked.sql`.
-- Writes: the lease, a new fence, version + 1.
-- Returns: the leases with their payload, in that order.
WITH RECURSIVE groups (scope, queue, priority, task, first_at) AS (
    SELECT scopes.queue, COALESCE(scopes.queue, ''), 101::smallint, '', NULL::timestamptz
    FROM (
        SELECT NULL::text AS queue WHERE %(queues)s::text[] IS NULL
        UNION ALL
        SELECT unnest(%(queues)s::text[])
    ) AS scopes
    WHERE cardinality(%(mark_ids)s::bigint[]) = 0
    UNION ALL
    SELECT groups.scope, next.queue, next.priority, next.task, next.run_at
    FROM groups
    CROSS JOIN LATERAL (
        SELECT job.queue, job.priority, job.task, job.run_at
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 0
            AND (job.queue, job.priority * -1, job.task) > (groups.queue, groups.priority * -1, groups.task)
        ORDER BY job.queue, job.priority * -1, job.task, job.run_at, job.id
        LIMIT 1
    ) AS next
    WHERE groups.scope IS NULL OR next.queue = groups.scope
),
marked (queue, priority, task, at, id) AS (
    SELECT mark.queue, mark.priority, mark.task, to_timestamp(mark.epoch), mark.id
    FROM unnest(
        %(mark_queues)s::text[], %(mark_priorities)s::smallint[], %(mark_tasks)s::text[], %(mark_epochs)s::float8[],
        %(mark_ids)s::bigint[]
    ) AS mark (queue, priority, task, epoch, id)
),
live (queue, priority, task, first_at, mark_at, mark_id) AS (
    SELECT groups.queue, groups.priority, groups.task, groups.first_at, '-infinity'::timestamptz, 0::bigint
    FROM groups
    UNION ALL
    SELECT marked.queue, marked.priority, marked.task, behind.run_at, marked.at, marked.id
    FROM marked
    CROSS JOIN LATERAL (
        SELECT job.run_at
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 0 AND job.queue = marked.queue
            AND job.priority * -1 = marked.priority * -1 AND job.task = marked.task
            AND (job.run_at, job.id) > (marked.at, marked.id)
        ORDER BY job.run_at, job.id
        LIMIT 1
    ) AS behind
),
levels (priority, queues, tasks, mark_ats, mark_ids, most) AS MATERIALIZED (
    SELECT
        live.priority, array_agg(live.queue), array_agg(live.task), array_agg(live.mark_at), array_agg(live.mark_id),
        2 * %(limit)s::int / count(*) + LEAST(%(limit)s::int, 8)
    FROM live
    WHERE live.first_at <= statement_timestamp()
        AND live.task = ANY (%(tasks)s::text[])
        AND (%(queues)s::text[] IS NULL OR live.queue = ANY (%(queues)s::text[]))
        AND live.queue <> ALL (%(excluded)s::text[])
        AND NOT EXISTS (
            SELECT
            FROM pgqueue_queue AS paused
            WHERE paused.name = live.queue
                AND paused.paused_at IS NOT NULL
                AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
        )
        AND NOT EXISTS (
            SELECT
            FROM pgqueue_limit AS bound
            WHERE bound.id IN ('queue:' || live.queue, 'task:' || live.task)
                AND (bound.max_running IS NOT NULL OR bound.rate_per_second IS NOT NULL OR bound.paused_at IS NOT NULL)
        )
    GROUP BY live.priority
    ORDER BY CASE WHEN %(from_lowest)s::bool THEN live.priority ELSE -live.priority END
),
candidates AS MATERIALIZED (
    SELECT due.id
    FROM levels AS level
    CROSS JOIN LATERAL (
        SELECT single.id
        FROM (
            SELECT job.id
            FROM pgqueue_job AS job
            WHERE job.state IN ('pending', 'retrying')
                AND job.lane = 0
                AND job.queue = level.queues[1]
                AND job.priority * -1 = level.priority * -1
                AND job.task = level.tasks[1]
                AND job.run_at <= statement_timestamp()
                AND (job.run_at, job.id) > (level.mark_ats[1], level.mark_ids[1])
            ORDER BY job.run_at, job.id
            LIMIT %(limit)s::int
            FOR NO KEY UPDATE SKIP LOCKED
        ) AS single
        WHERE cardinality(level.tasks) = 1
        UNION ALL
        SELECT several.id
        FROM (
            WITH RECURSIVE merged (id, run_at, queue, is_cut) AS (
                SELECT 0::bigint, '-infinity'::timestamptz, '', true
                UNION ALL
                SELECT ahead.id, ahead.run_at, ahead.queue, ahead.is_cut
                FROM merged
                CROSS JOIN LATERAL (
                    SELECT
                        oldest.id, oldest.run_at, oldest.queue, oldest.rank = level.most AS is_cut,
                        count(*) FILTER (WHERE oldest.rank = level.most) OVER (
                            ORDER BY oldest.run_at, oldest.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                        ) AS cuts
                    FROM unnest(level.queues, level.tasks, level.mark_ats, level.mark_ids)
                        AS of_group (queue, task, mark_at, mark_id)
                    CROSS JOIN LATERAL (
                        SELECT job.id, job.run_at, job.queue, row_number() OVER (ORDER BY job.run_at, job.id) AS rank
                        FROM pgqueue_job AS job
                        WHERE job.state IN ('pending', 'retrying')
                            AND job.lane = 0
                            AND job.queue = of_group.queue
                            AND job.priority * -1 = level.priority * -1
                            AND job.task = of_group.task
                            AND job.run_at <= statement_timestamp()
                            AND (job.run_at, job.id) > (of_group.mark_at, of_group.mark_id)
                            AND (job.run_at, job.id) > (merged.run_at, merged.id)
                        ORDER BY job.run_at, job.id
                        LIMIT level.most
                    ) AS oldest
                ) AS ahead
                WHERE merged.is_cut AND ahead.cuts = 0
            )
            SELECT locked.id
            FROM merged
            CROSS JOIN LATERAL (
                SELECT job.id
                FROM pgqueue_job AS job
                WHERE job.id = merged.id
                    AND coalesce(job.state IN ('pending', 'retrying'), FALSE)
                    AND job.lane = 0
                    AND job.queue = merged.queue
                    AND job.run_at <= statement_timestamp()
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS locked
            WHERE merged.id <> 0
        ) AS several
        WHERE cardinality(level.tasks) > 1
    ) AS due
    LIMIT %(limit)s::int
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
ORDER BY claimed.priority DESC, claimed.run_at, claimed.id
