-- Choose due jobs to be claimed one by one, and lock their limits and keys: those that have lost a lease (lanes 2 and 3), or
-- plain ones (lane 0) whose queue or task is bound; first half of a laned claim.
-- One transaction with `claim_picked.sql`, which decides under a new snapshot: this one only proposes.
-- Guard: at most one row per (queue, shard_key), none while a job of the key runs, and only with the locks of its
-- limits and the key's transaction lock, which are tried and never waited for.
-- Order: priority from high to low, or from the lowest up; then run_at, then id, whatever the queue and the task.
-- Keys and limits that an earlier round of the same claim was refused are left out, so that others get their turn.
-- Returns: id, queue and key of the heads looked at, whether all locks were got, the limits locked and those missed.
-- First a row without id, as `pick_laned.sql` has it: this walk never breaks off.
WITH RECURSIVE walked (queue, priority, task, first_at) AS (
    SELECT '', 101::smallint, '', NULL::timestamptz
    UNION ALL
    SELECT next.queue, next.priority, next.task, next.run_at
    FROM walked
    CROSS JOIN LATERAL (
        SELECT job.queue, job.priority, job.task, job.run_at
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2, 3) AND job.lane = %(lane)s::smallint
            AND (job.queue, job.priority * -1, job.task) > (walked.queue, walked.priority * -1, walked.task)
        ORDER BY job.queue, job.priority * -1, job.task, job.run_at, job.id
        LIMIT 1
    ) AS next
),
groups (queue, priority, task) AS MATERIALIZED (
    SELECT walked.queue, walked.priority, walked.task
    FROM walked
    WHERE walked.first_at <= statement_timestamp()
        AND (%(queues)s::text[] IS NULL OR walked.queue = ANY (%(queues)s::text[]))
        AND walked.queue <> ALL (%(excluded)s::text[])
        AND NOT EXISTS (
            SELECT
            FROM pgqueue_queue AS paused
            WHERE paused.name = walked.queue
                AND paused.paused_at IS NOT NULL
                AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
        )
),
running (counts) AS MATERIALIZED (
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
limits (id, free) AS MATERIALIZED (
    SELECT bound.id, CASE
            WHEN bound.id = ANY (%(refused_limits)s::text[]) THEN 0
            WHEN bound.paused_at IS NOT NULL
                AND (bound.paused_until IS NULL OR bound.paused_until > statement_timestamp())
                THEN 0
            ELSE LEAST(
                bound.max_running - COALESCE((running.counts ->> bound.id)::int, 0),
                floor(pgqueue_tokens(bound.tokens, bound.rate_per_second, bound.burst, bound.refilled_at))::int
            )
        END
    FROM pgqueue_limit AS bound
    CROSS JOIN running
    WHERE (bound.max_running IS NOT NULL OR bound.rate_per_second IS NOT NULL OR bound.paused_at IS NOT NULL)
        AND (
            %(lane)s::smallint IN (2, 3)
            OR bound.id IN (
                SELECT 'queue:' || groups.queue FROM groups UNION ALL SELECT 'task:' || groups.task FROM groups
            )
        )
),
slots (free) AS MATERIALIZED (
    SELECT COALESCE(jsonb_object_agg(limits.id, COALESCE(limits.free, 1000000)), '{}'::jsonb)
    FROM limits
),
due AS MATERIALIZED (
    SELECT
        head.id, head.queue, head.shard_key, head.run_at, head.priority,
        head.rank = GREATEST(%(limit)s::int, 20)
            AND COALESCE((slots.free ->> ('queue:' || groups.queue))::int > head.rank, true)
            AND COALESCE((slots.free ->> ('task:' || groups.task))::int > head.rank, true) AS has_more,
        ARRAY[
            'queue:' || head.queue, 'task:' || head.task, 'tenant:' || head.tenant, 'resource:' || head.resource
        ] AS ids
    FROM groups
    CROSS JOIN slots
    CROSS JOIN LATERAL (
        SELECT
            job.id, job.queue, job.shard_key, job.run_at, job.priority, job.task, job.tenant, job.resource,
            row_number() OVER (ORDER BY job.run_at, job.id) AS rank
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying')
            AND job.lane IN (0, 2, 3)
            AND job.lane = %(lane)s::smallint
            AND job.queue = groups.queue
            AND job.priority * -1 = groups.priority * -1
            AND job.task = groups.task
            AND job.run_at <= statement_timestamp()
            AND job.id <> ALL (%(refused_ids)s::bigint[])
            AND COALESCE((slots.free ->> ('tenant:' || job.tenant))::int, 1) > 0
            AND COALESCE((slots.free ->> ('resource:' || job.resource))::int, 1) > 0
            AND (
                job.shard_key IS NULL
                OR (
                    job.queue || chr(31) || job.shard_key <> ALL (%(refused_keys)s::text[])
                    AND NOT EXISTS (
                        SELECT
                        FROM pgqueue_job AS busy
                        WHERE busy.state = 'running' AND busy.queue = job.queue AND busy.shard_key = job.shard_key
                    )
                )
            )
        ORDER BY job.run_at, job.id
        LIMIT GREATEST(%(limit)s::int, 20)
    ) AS head
    WHERE groups.task = ANY (%(tasks)s::text[])
        AND COALESCE((slots.free ->> ('queue:' || groups.queue))::int, 1) > 0
        AND COALESCE((slots.free ->> ('task:' || groups.task))::int, 1) > 0
        AND (
            %(lane)s::smallint IN (2, 3)
            OR slots.free ? ('queue:' || groups.queue)
            OR slots.free ? ('task:' || groups.task)
        )
),
heads AS MATERIALIZED (
    SELECT DISTINCT ON (due.queue COLLATE "C", COALESCE(due.shard_key, due.id::text) COLLATE "C")
        due.id, due.queue, due.shard_key, due.run_at, due.priority, due.ids
    FROM due
    ORDER BY
        due.queue COLLATE "C", COALESCE(due.shard_key, due.id::text) COLLATE "C", due.priority DESC, due.run_at, due.id
),
placed AS MATERIALIZED (
    SELECT
        heads.id, heads.queue, heads.shard_key, heads.ids,
        row_number() OVER (
            ORDER BY
                CASE WHEN %(from_lowest)s::bool THEN heads.priority ELSE -heads.priority END, heads.run_at, heads.id
        ) AS place
    FROM heads
),
in_excess (id) AS MATERIALIZED (
    SELECT ranked.id
    FROM (
        SELECT
            placed.id, limits.free, row_number() OVER (PARTITION BY limits.id COLLATE "C" ORDER BY placed.place) AS rank
        FROM placed
        CROSS JOIN LATERAL unnest(placed.ids) AS named (id)
        JOIN limits ON limits.id = named.id
    ) AS ranked
    WHERE ranked.rank > ranked.free
),
chosen AS MATERIALIZED (
    SELECT placed.id, placed.queue, placed.shard_key, placed.place, placed.ids
    FROM placed
    WHERE placed.id NOT IN (SELECT in_excess.id FROM in_excess)
    ORDER BY placed.place
    LIMIT %(limit)s::int
),
locked AS MATERIALIZED (
    SELECT bound.id
    FROM pgqueue_limit AS bound
    WHERE bound.id IN (
            SELECT named.id
            FROM chosen
            CROSS JOIN unnest(chosen.ids) AS named (id)
            WHERE named.id IN (SELECT limits.id FROM limits)
        )
    ORDER BY bound.id
    FOR NO KEY UPDATE SKIP LOCKED
)
(
    SELECT
        NULL::bigint AS id, NULL::text AS queue_and_key, EXISTS (SELECT FROM due WHERE due.has_more) AS got, 0 AS place,
        ARRAY[]::text[] AS limits, ARRAY[]::text[] AS missed, '{}'::text AS broken_off
)
UNION ALL
(
    SELECT
        chosen.id,
        chosen.queue || chr(31) || chosen.shard_key AS queue_and_key,
        NOT EXISTS (
            SELECT
            FROM unnest(chosen.ids) AS named (id)
            WHERE named.id IN (SELECT limits.id FROM limits) AND named.id NOT IN (SELECT locked.id FROM locked)
        )
        AND (
            chosen.shard_key IS NULL
            OR pg_try_advisory_xact_lock(hashtextextended(chosen.queue || chr(31) || chosen.shard_key, 0))
        ) AS got,
        chosen.place,
        ARRAY(SELECT locked.id FROM locked WHERE locked.id = ANY (chosen.ids)),
        ARRAY(
            SELECT limits.id
            FROM limits
            WHERE limits.id = ANY (chosen.ids) AND limits.id NOT IN (SELECT locked.id FROM locked)
        ),
        NULL::text
    FROM chosen
)
ORDER BY place
