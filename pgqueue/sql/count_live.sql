-- Count unfinished jobs by state, for people. No locks; beyond the cap nothing is looked at. Lanes are named because
-- the indexes of waiting rows are: without them the whole table would be read.
-- Returns: one row; ready, scheduled and retrying are of the waiting rows looked at. `table_rows` is exact up to the
-- cap, and null where the table is too large to count; `table_estimate` is the planner's, null before anyone looked.
WITH waiting AS MATERIALIZED (
    SELECT each.state, each.run_at
    FROM (
        SELECT job.state, job.run_at
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane IN (0, 2, 3)
        UNION ALL
        SELECT job.state, job.run_at
        FROM pgqueue_job AS job
        WHERE job.state IN ('pending', 'retrying') AND job.lane = 1 AND job.priority <= 100
    ) AS each
    LIMIT %(cap)s::int
),
running AS MATERIALIZED (
    SELECT job.lease_until, job.lane, job.id, job.task, job.worker_id, job.claimed_at
    FROM pgqueue_job AS job
    WHERE job.state = 'running'
    LIMIT %(cap)s::int
),
unknown AS MATERIALIZED (
    SELECT job.id, job.task, job.probe_at, job.claimed_at
    FROM pgqueue_job AS job
    WHERE job.state = 'unknown'
    ORDER BY job.probe_at NULLS FIRST, job.id
    LIMIT %(cap)s::int
),
held AS MATERIALIZED (
    SELECT job.id
    FROM pgqueue_job AS job
    WHERE job.state = 'paused'
    LIMIT %(cap)s::int
),
oldest AS MATERIALIZED (
    SELECT unknown.id, unknown.task, unknown.claimed_at
    FROM unknown
    ORDER BY unknown.claimed_at NULLS LAST, unknown.id
    LIMIT 1
)
SELECT
    (SELECT count(*) FROM waiting) AS waiting,
    (SELECT count(*) FROM waiting WHERE waiting.state = 'pending' AND waiting.run_at <= statement_timestamp()) AS ready,
    (SELECT count(*) FROM waiting WHERE waiting.state = 'pending' AND waiting.run_at > statement_timestamp())
        AS scheduled,
    (SELECT count(*) FROM waiting WHERE waiting.state = 'retrying') AS retrying,
    (
        SELECT (extract(epoch FROM statement_timestamp()) - extract(epoch FROM min(waiting.run_at)))::float8
        FROM waiting
        WHERE waiting.run_at <= statement_timestamp()
    ) AS oldest_ready_seconds,
    (SELECT count(*) FROM running) AS running,
    (SELECT count(*) FROM running WHERE running.lease_until <= statement_timestamp()) AS expired,
    (
        SELECT jsonb_build_object('id', running.id, 'task', running.task, 'worker', running.worker_id)
        FROM running
        WHERE running.lane IN (2, 3)
            AND NOT EXISTS (
                SELECT
                FROM pgqueue_worker AS quarantine
                WHERE quarantine.id = running.worker_id AND quarantine.parent_id IS NOT NULL
            )
        ORDER BY running.claimed_at
        LIMIT 1
    ) AS alone,
    (SELECT count(*) FROM unknown) AS unknown,
    (SELECT count(*) FROM unknown WHERE unknown.probe_at IS NULL) AS needs_a_person,
    (SELECT oldest.id FROM oldest) AS oldest_unknown_id,
    (SELECT oldest.task FROM oldest) AS oldest_unknown_task,
    (SELECT (extract(epoch FROM statement_timestamp()) - extract(epoch FROM oldest.claimed_at))::float8 FROM oldest)
        AS oldest_unknown_seconds,
    (SELECT count(*) FROM held) AS held,
    (
        SELECT COALESCE(jsonb_agg(
            jsonb_build_object(
                'name', queue.name, 'by', queue.paused_by, 'reason', queue.pause_reason,
                'seconds', (extract(epoch FROM statement_timestamp()) - extract(epoch FROM queue.paused_at))::float8,
                'left_seconds', (extract(epoch FROM queue.paused_until) - extract(epoch FROM statement_timestamp()))::float8
            )
            ORDER BY queue.paused_at
        ), '[]')
        FROM pgqueue_queue AS queue
        WHERE queue.paused_at IS NOT NULL
            AND (queue.paused_until IS NULL OR queue.paused_until > statement_timestamp())
    ) AS paused,
    (
        SELECT COALESCE(
            jsonb_agg(
                jsonb_build_object(
                    'id', request.id, 'verb', request.verb, 'kind', request.target_kind, 'target', request.target_id,
                    'by', request.asked_by,
                    'seconds', (extract(epoch FROM statement_timestamp()) - extract(epoch FROM request.created_at))::float8
                )
                ORDER BY request.id
            ),
            '[]'
        )
        FROM pgqueue_approvalrequest AS request
        LEFT JOIN pgqueue_job AS job
            ON job.id = CASE WHEN request.target_kind = 'job' THEN request.target_id::bigint END
        WHERE request.state = 'waiting'
            AND request.expires_at > statement_timestamp()
            AND (request.target_kind <> 'job' OR job.version = request.version_seen)
    ) AS asked_for,
    (
        SELECT COALESCE(sum(worker.slots), 0)::bigint
        FROM pgqueue_worker AS worker
        WHERE worker.stopped_at IS NULL
            AND worker.parent_id IS NULL
            AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => worker.lease_seconds)
    ) AS slots,
    CASE
        WHEN pg_relation_size('pgqueue_job') <= %(counted_bytes)s::bigint
            THEN (SELECT count(*) FROM (SELECT FROM pgqueue_job AS job ORDER BY job.id LIMIT %(cap)s::int) AS counted)
    END AS table_rows,
    (
        SELECT
            class.reltuples / class.relpages
            * (pg_relation_size(class.oid) / current_setting('block_size')::int)
        FROM pg_class AS class
        WHERE class.oid = 'pgqueue_job'::regclass AND class.reltuples >= 0 AND class.relpages > 0
    )::bigint AS table_estimate,
    statement_timestamp() AS at
