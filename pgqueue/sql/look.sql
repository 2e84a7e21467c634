-- Look what there is to do and until when to sleep. One statement, no locks: an idle worker sends nothing else.
-- Returns: lanes with a due row in a served queue (4 for a plain one whose queue or task is bound); seconds to the
-- next future row, or to the next token of a rate that has none left; seconds to the next expiry of a lease
-- (negative: expired), null where there is none, ids of some that have expired, and the worker from which the next look
-- is to go on: so many running rows are looked at, in the order of their workers, and round again; names of all queues
-- with waiting jobs; queue, priority and task of each group in the plain lane, which claims may mark; for how many
-- seconds the first row of lane 3 has been due.
-- The first of an order and not min(): of few rows, as old statistics have it, min() reads all.
WITH RECURSIVE groups (lane, queue, priority, task, first_at) AS (
    SELECT lanes.lane, '', 101::smallint, '', NULL::timestamptz
    FROM (VALUES (0::smallint), (2::smallint), (3::smallint)) AS lanes (lane)
    UNION ALL
    SELECT groups.lane, next.queue, next.priority, next.task, next.run_at
    FROM groups
    CROSS JOIN LATERAL (
        SELECT job.queue, job.priority, job.task, job.run_at
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2, 3) AND job.lane = groups.lane
            AND (job.queue, job.priority * -1, job.task) > (groups.queue, groups.priority * -1, groups.task)
        ORDER BY job.queue, job.priority * -1, job.task, job.run_at, job.id
        LIMIT 1
    ) AS next
),
laned (queue) AS (
    SELECT ''
    UNION ALL
    SELECT (
        SELECT job.queue
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority >= -100
            AND job.queue > laned.queue
        ORDER BY job.queue
        LIMIT 1
    )
    FROM laned
    WHERE laned.queue IS NOT NULL
),
found (queue) AS MATERIALIZED (
    SELECT groups.queue FROM groups WHERE groups.first_at IS NOT NULL
    UNION
    SELECT laned.queue FROM laned WHERE laned.queue <> ''
),
served (queue) AS MATERIALIZED (
    SELECT found.queue
    FROM found
    WHERE (%(queues)s::text[] IS NULL OR found.queue = ANY (%(queues)s::text[]))
        AND found.queue <> ALL (%(excluded)s::text[])
        AND NOT EXISTS (
            SELECT
            FROM pgqueue_queue AS paused
            WHERE paused.name = found.queue
                AND paused.paused_at IS NOT NULL
                AND (paused.paused_until IS NULL OR paused.paused_until > statement_timestamp())
        )
),
seen (lane, first_at, next_at) AS MATERIALIZED (
    SELECT
        CASE
            WHEN groups.lane = 0 AND EXISTS (
                SELECT
                FROM pgqueue_limit AS bound
                WHERE bound.id IN ('queue:' || groups.queue, 'task:' || groups.task)
                    AND (
                        bound.max_running IS NOT NULL
                        OR bound.rate_per_second IS NOT NULL
                        OR bound.paused_at IS NOT NULL
                    )
            ) THEN 4
            ELSE groups.lane
        END,
        groups.first_at,
        (
            SELECT min(job.run_at)
            FROM pgqueue_job AS job
            WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2, 3) AND job.lane = groups.lane
                AND job.queue = groups.queue AND job.priority * -1 = groups.priority * -1 AND job.task = groups.task
                AND job.run_at > statement_timestamp()
        )
    FROM groups
    WHERE groups.task = ANY (%(tasks)s::text[]) AND groups.queue IN (SELECT served.queue FROM served)
    UNION ALL
    SELECT
        1,
        (
            SELECT min(job.run_at)
            FROM pgqueue_job AS job
            WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority <= 100
                AND job.queue = served.queue
        ),
        (
            SELECT min(job.run_at)
            FROM pgqueue_job AS job
            WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority <= 100
                AND job.queue = served.queue AND job.run_at > statement_timestamp()
        )
    FROM served
),
watched (lap, worker_id, id, lease_until) AS MATERIALIZED (
    SELECT each.lap, each.worker_id, each.id, each.lease_until
    FROM (
        (
            SELECT 1 AS lap, job.worker_id, job.id, job.lease_until
            FROM pgqueue_job AS job
            WHERE job.state = 'running' AND job.worker_id >= %(from_worker)s::bigint
            ORDER BY job.worker_id
            LIMIT %(watched)s::int
        )
        UNION ALL
        (
            SELECT 2 AS lap, job.worker_id, job.id, job.lease_until
            FROM pgqueue_job AS job
            WHERE job.state = 'running' AND job.worker_id < %(from_worker)s::bigint
            ORDER BY job.worker_id
            LIMIT %(watched)s::int
        )
    ) AS each
    LIMIT %(watched)s::int
),
lapped (looked_at, last_worker) AS MATERIALIZED (
    SELECT
        count(*),
        COALESCE(max(watched.worker_id) FILTER (WHERE watched.lap = 2), max(watched.worker_id))
    FROM watched
)
SELECT
    ARRAY(SELECT DISTINCT seen.lane FROM seen WHERE seen.first_at <= statement_timestamp()) AS due_lanes,
    LEAST(
        (SELECT extract(epoch FROM min(seen.next_at) - statement_timestamp())::float8 FROM seen),
        (
            SELECT min(
                (1 - pgqueue_tokens(bound.tokens, bound.rate_per_second, bound.burst, bound.refilled_at))
                / bound.rate_per_second
            )::float8
            FROM pgqueue_limit AS bound
            WHERE pgqueue_tokens(bound.tokens, bound.rate_per_second, bound.burst, bound.refilled_at) < 1
                AND EXISTS (SELECT FROM seen WHERE seen.lane <> 0 AND seen.first_at <= statement_timestamp())
        )
    ) AS next_due_seconds,
    (
        SELECT extract(epoch FROM min(watched.lease_until) - statement_timestamp())::float8 FROM watched
    ) AS next_expiry_seconds,
    ARRAY(
        SELECT watched.id
        FROM watched
        WHERE watched.lease_until <= statement_timestamp()
        ORDER BY random()
        LIMIT %(most_expired)s::int
    ) AS expired_ids,
    (
        SELECT CASE
            WHEN lapped.looked_at < %(watched)s::int THEN %(from_worker)s::bigint
            -- All were of one worker: what it has beyond is looked at when these have ended.
            WHEN lapped.last_worker = %(from_worker)s::bigint THEN lapped.last_worker + 1
            ELSE lapped.last_worker
        END
        FROM lapped
    ) AS next_worker,
    ARRAY(SELECT DISTINCT found.queue FROM found WHERE found.queue IS NOT NULL) AS queues,
    ARRAY(SELECT groups.queue FROM groups WHERE groups.first_at IS NOT NULL AND groups.lane = 0) AS group_queues,
    ARRAY(SELECT groups.priority FROM groups WHERE groups.first_at IS NOT NULL AND groups.lane = 0) AS group_priorities,
    ARRAY(SELECT groups.task FROM groups WHERE groups.first_at IS NOT NULL AND groups.lane = 0) AS group_tasks,
    (
        SELECT extract(epoch FROM statement_timestamp() - min(seen.first_at))::float8
        FROM seen
        WHERE seen.lane = 3 AND seen.first_at <= statement_timestamp()
    ) AS isolated_seconds
