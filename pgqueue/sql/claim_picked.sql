-- Claim jobs picked by `pick_laned.sql` or `pick_bound.sql`; second half of a laned claim, in the same transaction.
-- Transition: pending, retrying -> running.
-- Guard: the row is still waiting and due, nobody holds its lock, no job of its shard key is running, no older
-- one waits that has lost its lease, no older one blocks the key, its queue is not paused, each of its limits is
-- locked by the first half, or bounds nothing, no limit is exceeded, no rate, none of them is paused: all read under
-- this statement's own snapshot, taken after the locks were held.
-- A slot is a running job, expired or not. Where jobs compete for a slot, the one picked first gets it.
-- The guards stand in a sub-select of their own: in a join, the planner may read all waiting rows for a few ids.
-- COALESCE hides the state from partial indexes: with statistics from before the rows came, one of all waiting rows
-- looks as cheap as the primary key, and would be read from end to end for every id.
-- Writes: the lease, a new fence, version + 1; what is left of the tokens.
-- Returns: the leases with their payload, in the order they were picked.
WITH running (counts) AS MATERIALIZED (
    SELECT CASE
        WHEN EXISTS (SELECT FROM pgqueue_limit AS bound WHERE bound.max_running IS NOT NULL) THEN (
            SELECT COALESCE(jsonb_object_agg(counted.id, counted.jobs), '{}'::jsonb)
            FROM (
                SELECT named.id, count(*) AS jobs
                FROM pgqueue_job AS job
                CROSS JOIN LATERAL unnest(
                    ARRAY[
                        'queue:' || job.queue, 'task:' || job.task, 'tenant:' || job.tenant,
                        'resource:' || job.resource
                    ]
                ) AS named (id)
                WHERE job.state = 'running' AND named.id IS NOT NULL
                GROUP BY named.id
            ) AS counted
        )
    END
),
picked AS MATERIALIZED (
    SELECT mine.id, mine.queue, mine.task, mine.tenant, mine.resource, given.place
    FROM unnest(%(ids)s::bigint[]) WITH ORDINALITY AS given (id, place)
    CROSS JOIN LATERAL (
        SELECT job.id, job.queue, job.task, job.tenant, job.resource
        FROM pgqueue_job AS job
        WHERE job.id = given.id
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
                            AND recovered.lane IN (2, 3)
                            AND recovered.queue = job.queue
                            AND recovered.shard_key = job.shard_key
                            AND recovered.id < job.id
                    )
                    AND NOT EXISTS (
                        SELECT
                        FROM pgqueue_job AS older
                        WHERE older.blocks_key
                            AND older.state IN ('pending', 'retrying', 'running', 'paused', 'unknown')
                            AND older.queue = job.queue
                            AND older.shard_key = job.shard_key
                            AND older.id < job.id
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
bounds AS MATERIALIZED (
    SELECT
        picked.id, bound.id AS limit_id,
        bound.id = ANY (%(locked)s::text[]) AS is_locked,
        row_number() OVER (PARTITION BY bound.id ORDER BY picked.place) AS rank,
        CASE
            WHEN bound.paused_at IS NOT NULL
                AND (bound.paused_until IS NULL OR bound.paused_until > statement_timestamp())
                THEN 0
            ELSE LEAST(
                bound.max_running - COALESCE((running.counts ->> bound.id)::int, 0),
                floor(pgqueue_tokens(bound.tokens, bound.rate_per_second, bound.burst, bound.refilled_at))::int
            )
        END AS free
    FROM picked
    CROSS JOIN LATERAL unnest(
        ARRAY[
            'queue:' || picked.queue, 'task:' || picked.task, 'tenant:' || picked.tenant,
            'resource:' || picked.resource
        ]
    ) AS named (id)
    JOIN pgqueue_limit AS bound ON bound.id = named.id
    CROSS JOIN running
    WHERE bound.max_running IS NOT NULL OR bound.rate_per_second IS NOT NULL OR bound.paused_at IS NOT NULL
),
candidates AS MATERIALIZED (
    SELECT picked.id, picked.place
    FROM picked
    WHERE NOT EXISTS (
        SELECT
        FROM bounds
        WHERE bounds.id = picked.id AND (NOT bounds.is_locked OR bounds.rank > bounds.free)
    )
),
spent AS (
    UPDATE pgqueue_limit AS bound
    SET tokens = pgqueue_tokens(bound.tokens, bound.rate_per_second, bound.burst, bound.refilled_at) - starts.jobs,
        refilled_at = statement_timestamp()
    FROM (
        SELECT bounds.limit_id, count(*) AS jobs
        FROM bounds
        JOIN candidates ON candidates.id = bounds.id
        GROUP BY bounds.limit_id
    ) AS starts
    WHERE bound.id = starts.limit_id AND bound.rate_per_second IS NOT NULL
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
        job.operation_key, job.created_at, job.run_at, job.replaced_at, candidates.place
)
SELECT
    claimed.id, claimed.worker_id, claimed.fence, claimed.version, claimed.queue, claimed.task, claimed.priority,
    CASE claimed.lane WHEN 0 THEN 4 ELSE claimed.lane END AS lane, claimed.attempts, claimed.max_attempts,
    claimed.lease_losses, claimed.max_run_seconds, claimed.recovery, claimed.tenant, claimed.shard_key,
    claimed.operation_key, date_part('epoch', claimed.created_at) AS created_epoch,
    date_part('epoch', claimed.run_at) AS run_epoch,
    payload.args::text AS args, payload.kwargs::text AS kwargs, claimed.replaced_at
FROM claimed
LEFT JOIN pgqueue_jobpayload AS payload ON payload.job_id = claimed.id
ORDER BY claimed.place
