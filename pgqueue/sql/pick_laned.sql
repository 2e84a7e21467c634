-- Choose due jobs of a guarded lane and lock their shard keys; first half of a laned claim.
-- One transaction with `claim_picked.sql`, which decides under a new snapshot: this statement only proposes.
-- Guard: at most one row per (queue, shard_key), none while a job of the key runs or an older one waits that
-- has lost its lease, and only with the key's transaction lock, which is tried and never waited for.
-- Busy keys and recovered jobs are read once and hashed: looked up row by row, 100,000 jobs of a busy key in front
-- cost a claim five times as much.
-- Keys that an earlier round of the same claim was refused are left out, so that they do not stand in the way.
-- Returns: id, queue and key of the heads looked at, and whether the key's lock was got; nothing else is locked.
WITH RECURSIVE waiting (queue) AS (
    (
        SELECT min(job.queue)
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = %(lane)s::smallint AND %(queues)s::text[] IS NULL
    )
    UNION ALL
    SELECT (
        SELECT min(job.queue)
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = %(lane)s::smallint
            AND job.queue > waiting.queue
    )
    FROM waiting
    WHERE waiting.queue IS NOT NULL
),
served (queue) AS (
    SELECT named.queue
    FROM (
        SELECT waiting.queue FROM waiting WHERE waiting.queue IS NOT NULL
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
levels (queue, priority) AS (
    SELECT served.queue, (
        SELECT max(job.priority)
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = %(lane)s::smallint AND job.queue = served.queue
    )
    FROM served
    UNION ALL
    SELECT levels.queue, (
        SELECT max(job.priority)
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = %(lane)s::smallint
            AND job.queue = levels.queue AND job.priority < levels.priority
    )
    FROM levels
    WHERE levels.priority IS NOT NULL
),
busy (queue, shard_key) AS MATERIALIZED (
    SELECT job.queue, job.shard_key
    FROM pgqueue_job AS job
    WHERE job.state = 'running' AND job.shard_key IS NOT NULL
),
recovered (queue, shard_key, id) AS MATERIALIZED (
    SELECT job.queue, job.shard_key, job.id
    FROM pgqueue_job AS job
    WHERE job.state IN ('pending', 'retrying') AND job.lane = 2 AND job.shard_key IS NOT NULL
),
candidates AS MATERIALIZED (
    SELECT due.id, due.queue, due.shard_key, row_number() OVER () AS place
    FROM (
        SELECT levels.queue, levels.priority
        FROM levels
        WHERE levels.priority IS NOT NULL
        ORDER BY levels.priority DESC, random()
    ) AS level
    CROSS JOIN LATERAL (
        SELECT job.id, job.queue, job.shard_key
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying')
            AND job.lane = %(lane)s::smallint
            AND job.queue = level.queue
            AND job.priority = level.priority
            AND job.run_at <= statement_timestamp()
            AND job.task = ANY (%(tasks)s::text[])
            AND job.id <> ALL (%(refused_ids)s::bigint[])
            AND (
                job.shard_key IS NULL
                OR job.queue || chr(31) || job.shard_key <> ALL (%(refused_keys)s::text[])
            )
            AND (
                job.shard_key IS NULL
                OR (
                    (job.queue, job.shard_key) NOT IN (SELECT busy.queue, busy.shard_key FROM busy)
                    AND (
                        (job.queue, job.shard_key) NOT IN (
                            SELECT recovered.queue, recovered.shard_key FROM recovered
                        )
                        OR NOT EXISTS (
                            SELECT
                            FROM recovered
                            WHERE recovered.queue = job.queue
                                AND recovered.shard_key = job.shard_key
                                AND recovered.id < job.id
                        )
                    )
                )
            )
        ORDER BY job.run_at, job.id
        LIMIT 200
    ) AS due
    LIMIT 200
),
heads AS MATERIALIZED (
    SELECT DISTINCT ON (candidates.queue, COALESCE(candidates.shard_key, candidates.id::text))
        candidates.id, candidates.queue, candidates.shard_key, candidates.place
    FROM candidates
    ORDER BY candidates.queue, COALESCE(candidates.shard_key, candidates.id::text), candidates.place
),
chosen AS MATERIALIZED (
    SELECT heads.id, heads.queue, heads.shard_key, heads.place
    FROM heads
    ORDER BY heads.place
    LIMIT %(limit)s::int
)
SELECT
    chosen.id,
    chosen.queue || chr(31) || chosen.shard_key AS queue_and_key,
    chosen.shard_key IS NULL
        OR pg_try_advisory_xact_lock(hashtextextended(chosen.queue || chr(31) || chosen.shard_key, 0)) AS got
FROM chosen
ORDER BY chosen.place
