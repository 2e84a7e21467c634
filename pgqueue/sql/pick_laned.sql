-- Choose due jobs that name a tenant, a shard key or a resource, and lock their limits and keys; first half of a
-- laned claim. One transaction with `claim_picked.sql`, which decides under a new snapshot: this one only proposes.
-- Guard: at most one row per (queue, shard_key), none while a job of the key runs or an older one waits that
-- has lost its lease, and only with the locks of its limits and the key's transaction lock, which are tried and never
-- waited for.
-- Order: priority from high to low, or from the lowest up; then tenants in turn, each with as many rows as it has
-- weight, from the tenant on that is next; a tenant's keys in turn too; then run_at, then id.
-- The walk goes from one (tenant, key, task, resource) to the next by the index, so that a hundred thousand rows of a
-- tenant or a key that may not run cost one step. It takes so many steps and no more; where it broke off, the next
-- one goes on. Of each group without a key it reads about as many rows as it may come to give.
-- The first of an order and not min(): of few rows, as old statistics have it, min() reads all.
-- Keys and limits that an earlier round of the same claim was refused are left out, so that others get their turn.
-- Returns: id, queue and key of the heads looked at, whether all locks were got, the limits locked and those missed.
-- First a row without id: whether more rows of a group stand behind those it read, the tenant where a walk over tenants
-- broke off, and by tenant the key, task and resource where one over its groups did.
WITH RECURSIVE waiting (queue) AS (
    SELECT ''
    WHERE %(queues)s::text[] IS NULL
    UNION ALL
    SELECT (
        SELECT job.queue
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1
            AND job.priority >= -100 AND job.queue > waiting.queue
        ORDER BY job.queue
        LIMIT 1
    )
    FROM waiting
    WHERE waiting.queue IS NOT NULL
),
served (queue, turn) AS (
    SELECT named.queue, random()
    FROM (
        SELECT waiting.queue FROM waiting WHERE waiting.queue <> ''
        UNION
        SELECT unnest(%(queues)s::text[])
    ) AS named
    WHERE named.queue <> ALL (%(excluded)s::text[])
        AND NOT EXISTS (
            SELECT
            FROM pgqueue_queue AS paused
            WHERE paused.name = named.queue
                AND paused.paused_at IS NOT NULL
                AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
        )
),
levels (queue, turn, priority) AS (
    SELECT served.queue, served.turn, 101::smallint
    FROM served
    UNION ALL
    SELECT levels.queue, levels.turn, (
        SELECT job.priority
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1
            AND job.priority >= -100 AND job.queue = levels.queue
            AND job.priority < levels.priority
        ORDER BY job.priority DESC
        LIMIT 1
    )
    FROM levels
    WHERE levels.priority IS NOT NULL
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
ahead (queue, turn, priority, tenant, step) AS (
    SELECT levels.queue, levels.turn, levels.priority, (
        SELECT COALESCE(job.tenant, '')
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1
            AND job.priority >= -100 AND job.queue = levels.queue
            AND job.priority = levels.priority AND COALESCE(job.tenant, '') >= %(next_tenant)s::text
        ORDER BY COALESCE(job.tenant, '')
        LIMIT 1
    ), 1
    FROM levels
    WHERE levels.priority < 101
    UNION ALL
    SELECT ahead.queue, ahead.turn, ahead.priority, (
        SELECT COALESCE(job.tenant, '')
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority >= -100 AND job.queue = ahead.queue
            AND job.priority = ahead.priority AND COALESCE(job.tenant, '') > ahead.tenant
        ORDER BY COALESCE(job.tenant, '')
        LIMIT 1
    ), ahead.step + 1
    FROM ahead
    WHERE ahead.tenant IS NOT NULL AND ahead.step < %(steps)s::int
),
behind (queue, turn, priority, tenant, step) AS (
    SELECT ahead.queue, ahead.turn, ahead.priority, (
        SELECT COALESCE(job.tenant, '')
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority >= -100 AND job.queue = ahead.queue
            AND job.priority = ahead.priority AND COALESCE(job.tenant, '') < %(next_tenant)s::text
        ORDER BY COALESCE(job.tenant, '')
        LIMIT 1
    ), ahead.step
    FROM ahead
    WHERE ahead.tenant IS NULL
    UNION ALL
    SELECT behind.queue, behind.turn, behind.priority, (
        SELECT COALESCE(job.tenant, '')
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1
            AND job.priority >= -100 AND job.queue = behind.queue
            AND job.priority = behind.priority AND COALESCE(job.tenant, '') > behind.tenant
            AND COALESCE(job.tenant, '') < %(next_tenant)s::text
        ORDER BY COALESCE(job.tenant, '')
        LIMIT 1
    ), behind.step + 1
    FROM behind
    WHERE behind.tenant IS NOT NULL AND behind.step < %(steps)s::int
),
tenants AS MATERIALIZED (
    SELECT
        ring.queue, ring.turn, ring.priority, ring.tenant, ring.lap, ring.step,
        COALESCE(bound.weight, 1) AS weight,
        CASE WHEN bound.id IS NOT NULL THEN CASE
            WHEN bound.id = ANY (%(refused_limits)s::text[]) THEN 0
            WHEN bound.paused_at IS NOT NULL
                AND (bound.paused_until IS NULL OR bound.paused_until > statement_timestamp())
                THEN 0
            ELSE LEAST(
                bound.max_running - COALESCE((running.counts ->> bound.id)::int, 0),
                floor(pgqueue_tokens(bound.tokens, bound.rate_per_second, bound.burst, bound.refilled_at))::int
            )
        END END AS free
    FROM (
        SELECT ahead.queue, ahead.turn, ahead.priority, ahead.tenant, 0 AS lap, ahead.step FROM ahead
        UNION ALL
        SELECT behind.queue, behind.turn, behind.priority, behind.tenant, 1, behind.step FROM behind
    ) AS ring
    CROSS JOIN running
    LEFT JOIN pgqueue_limit AS bound ON bound.id = 'tenant:' || ring.tenant
    WHERE ring.tenant IS NOT NULL
),
shares AS MATERIALIZED (
    SELECT
        tenants.queue, tenants.turn, tenants.priority, tenants.tenant, tenants.step, tenants.weight, tenants.free,
        CASE
            WHEN tenants.tenant = %(next_tenant)s::text AND %(used)s::int >= tenants.weight THEN 2 ELSE tenants.lap
        END AS lap,
        CASE
            WHEN tenants.tenant = %(next_tenant)s::text AND %(used)s::int < tenants.weight THEN %(used)s::int ELSE 0
        END AS used,
        LEAST(
            %(limit)s::int + 8,
            GREATEST(
                tenants.weight,
                2 * %(limit)s::int / count(*) OVER (PARTITION BY tenants.queue, tenants.priority)
            )
        ) AS most,
        GREATEST(4, %(steps)s::int / count(*) OVER (PARTITION BY tenants.queue, tenants.priority)) AS steps,
        COALESCE(%(places)s::jsonb -> tenants.tenant ->> 0, '') AS after_key,
        COALESCE(%(places)s::jsonb -> tenants.tenant ->> 1, '') AS after_task,
        COALESCE(%(places)s::jsonb -> tenants.tenant ->> 2, '') AS after_resource
    FROM tenants
    WHERE COALESCE(tenants.free, 1) > 0
),
groups AS MATERIALIZED (
    SELECT
        shares.queue, shares.turn, shares.priority, shares.tenant, shares.step, shares.weight, shares.lap, shares.used,
        shares.most, shares.free, walk.shard_key, walk.task, walk.resource,
        walk.step >= shares.steps AS is_last
    FROM shares
    CROSS JOIN LATERAL (
        WITH RECURSIVE ahead (shard_key, task, resource, step) AS (
            SELECT shares.after_key, shares.after_task, shares.after_resource, 0
            UNION ALL
            SELECT next.shard_key, next.task, next.resource, ahead.step + 1
            FROM ahead
            CROSS JOIN LATERAL (
                SELECT COALESCE(job.shard_key, '') AS shard_key, job.task, COALESCE(job.resource, '') AS resource
                FROM pgqueue_job AS job
                WHERE job.state IN ('pending', 'retrying') AND job.lane = 1
                    AND job.priority >= -100 AND job.queue = shares.queue
                    AND job.priority = shares.priority AND COALESCE(job.tenant, '') = shares.tenant
                    AND (COALESCE(job.shard_key, ''), job.task, COALESCE(job.resource, ''))
                    > (ahead.shard_key, ahead.task, ahead.resource)
                ORDER BY COALESCE(job.shard_key, ''), job.task, COALESCE(job.resource, '')
                LIMIT 1
            ) AS next
            WHERE ahead.step < shares.steps
        ),
        behind (shard_key, task, resource, step) AS (
            SELECT '', '', '', 0
            WHERE shares.after_task <> '' AND NOT EXISTS (SELECT FROM ahead WHERE ahead.step >= shares.steps)
            UNION ALL
            SELECT next.shard_key, next.task, next.resource, behind.step + 1
            FROM behind
            CROSS JOIN LATERAL (
                SELECT COALESCE(job.shard_key, '') AS shard_key, job.task, COALESCE(job.resource, '') AS resource
                FROM pgqueue_job AS job
                WHERE job.state IN ('pending', 'retrying') AND job.lane = 1
                    AND job.priority >= -100 AND job.queue = shares.queue
                    AND job.priority = shares.priority AND COALESCE(job.tenant, '') = shares.tenant
                    AND (COALESCE(job.shard_key, ''), job.task, COALESCE(job.resource, ''))
                    > (behind.shard_key, behind.task, behind.resource)
                    AND (COALESCE(job.shard_key, ''), job.task, COALESCE(job.resource, ''))
                    <= (shares.after_key, shares.after_task, shares.after_resource)
                ORDER BY COALESCE(job.shard_key, ''), job.task, COALESCE(job.resource, '')
                LIMIT 1
            ) AS next
            WHERE behind.step < shares.steps
        )
        SELECT ahead.shard_key, ahead.task, ahead.resource, ahead.step FROM ahead WHERE ahead.step > 0
        UNION ALL
        SELECT behind.shard_key, behind.task, behind.resource, behind.step FROM behind WHERE behind.step > 0
    ) AS walk
),
recovered (queue, shard_key, id) AS MATERIALIZED (
    SELECT job.queue, job.shard_key, job.id
    FROM pgqueue_job AS job
    WHERE job.state IN ('pending', 'retrying') AND job.lane IN (2, 3) AND job.shard_key IS NOT NULL
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
    FROM (
        SELECT 'queue:' || groups.queue FROM groups
        UNION
        SELECT 'task:' || groups.task FROM groups
        UNION
        SELECT 'resource:' || groups.resource FROM groups
        UNION
        SELECT 'tenant:' || groups.tenant FROM groups
    ) AS named (id)
    JOIN pgqueue_limit AS bound ON bound.id = named.id
    CROSS JOIN running
    WHERE bound.max_running IS NOT NULL OR bound.rate_per_second IS NOT NULL OR bound.paused_at IS NOT NULL
),
slots (free) AS MATERIALIZED (
    SELECT COALESCE(jsonb_object_agg(limits.id, COALESCE(limits.free, 1000000)), '{}'::jsonb)
    FROM limits
),
due AS MATERIALIZED (
    SELECT
        groups.queue, groups.turn, groups.priority, groups.tenant, groups.step, groups.weight, groups.lap, groups.used,
        NULLIF(groups.shard_key, '') AS shard_key, row.id, row.run_at, row.task, row.resource,
        head.rank = groups.most
            AND groups.shard_key = ''
            AND COALESCE(groups.free > head.rank, true)
            AND COALESCE((slots.free ->> ('queue:' || groups.queue))::int > head.rank, true)
            AND COALESCE((slots.free ->> ('task:' || groups.task))::int > head.rank, true)
            AND COALESCE((slots.free ->> ('resource:' || groups.resource))::int > head.rank, true) AS has_more
    FROM groups
    CROSS JOIN slots
    CROSS JOIN LATERAL (
        SELECT job.id, job.queue, job.shard_key, row_number() OVER (ORDER BY job.run_at, job.id) AS rank
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority >= -100
            AND job.queue = groups.queue
            AND job.priority = groups.priority
            AND COALESCE(job.tenant, '') = groups.tenant
            AND COALESCE(job.shard_key, '') = groups.shard_key
            AND job.task = groups.task
            AND COALESCE(job.resource, '') = groups.resource
            AND job.run_at <= statement_timestamp()
            AND job.id <> ALL (%(refused_ids)s::bigint[])
        ORDER BY job.run_at, job.id
        LIMIT CASE WHEN groups.shard_key = '' THEN groups.most ELSE 1 END
    ) AS head
    CROSS JOIN LATERAL (
        SELECT first.id, first.run_at, first.task, first.resource
        FROM (
            SELECT job.id, job.run_at, job.task, job.resource, job.state, job.lane, job.queue, job.shard_key
            FROM pgqueue_job AS job
            WHERE job.id = COALESCE(
                (
                    SELECT older.id
                    FROM pgqueue_job AS older
                    WHERE older.blocks_key
                        AND older.state IN ('pending', 'retrying', 'running', 'paused', 'unknown')
                        AND older.queue = head.queue
                        AND older.shard_key = head.shard_key
                        AND older.id < head.id
                    ORDER BY older.id
                    LIMIT 1
                ),
                head.id
            )
            OFFSET 0
        ) AS first
        WHERE first.state IN ('pending', 'retrying')
            AND first.lane = 1
            AND first.run_at <= statement_timestamp()
            AND first.task = ANY (%(tasks)s::text[])
    ) AS row
    WHERE groups.task = ANY (%(tasks)s::text[])
        AND COALESCE((slots.free ->> ('queue:' || groups.queue))::int, 1) > 0
        AND COALESCE((slots.free ->> ('task:' || groups.task))::int, 1) > 0
        AND COALESCE((slots.free ->> ('resource:' || groups.resource))::int, 1) > 0
        AND groups.queue || chr(31) || groups.shard_key <> ALL (%(refused_keys)s::text[])
        AND NOT EXISTS (
            SELECT
            FROM pgqueue_job AS busy
            WHERE busy.state = 'running' AND busy.queue = groups.queue AND busy.shard_key = groups.shard_key
            OFFSET 0
        )
        AND (
            (groups.queue, groups.shard_key) NOT IN (SELECT recovered.queue, recovered.shard_key FROM recovered)
            OR NOT EXISTS (
                SELECT
                FROM recovered
                WHERE recovered.queue = groups.queue
                    AND recovered.shard_key = groups.shard_key
                    AND recovered.id < row.id
            )
        )
),
heads AS MATERIALIZED (
    SELECT DISTINCT ON (due.queue COLLATE "C", COALESCE(due.shard_key, due.id::text) COLLATE "C")
        due.queue, due.turn, due.priority, due.tenant, due.step, due.weight, due.lap, due.used, due.shard_key, due.id,
        due.run_at, due.task, due.resource
    FROM due
    ORDER BY
        due.queue COLLATE "C", COALESCE(due.shard_key, due.id::text) COLLATE "C", due.priority DESC, due.run_at, due.id
),
placed AS MATERIALIZED (
    SELECT
        shared.id, shared.queue, shared.shard_key,
        ARRAY[
            'queue:' || shared.queue, 'task:' || shared.task, 'tenant:' || shared.tenant,
            'resource:' || shared.resource
        ] AS ids,
        row_number() OVER (
            ORDER BY
                CASE WHEN %(from_lowest)s::bool THEN shared.priority ELSE -shared.priority END, shared.round,
                shared.turn, shared.lap, shared.step, shared.run_at, shared.id
        ) AS place
    FROM (
        SELECT
            heads.queue, heads.turn, heads.priority, heads.tenant, heads.lap, heads.step, heads.shard_key, heads.id,
            heads.run_at, heads.task, heads.resource,
            (
                row_number() OVER (
                    PARTITION BY heads.turn, heads.priority, heads.step, heads.tenant COLLATE "C"
                    ORDER BY heads.run_at, heads.id
                ) + heads.used - 1
            ) / heads.weight AS round
        FROM heads
    ) AS shared
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
        ARRAY(
            SELECT tenants.tenant
            FROM tenants
            WHERE tenants.step >= %(steps)s::int
            ORDER BY tenants.priority DESC, tenants.lap DESC, tenants.step DESC
            LIMIT 1
        ) AS limits,
        ARRAY[]::text[] AS missed,
        (
            SELECT COALESCE(
                    jsonb_object_agg(
                        groups.tenant, jsonb_build_array(groups.shard_key, groups.task, groups.resource)
                    ),
                    '{}'::jsonb
                )::text
            FROM groups
            WHERE groups.is_last
        ) AS broken_off
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
