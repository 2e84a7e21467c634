-- Take jobs from owners whose lease has run out; second half of a takeover.
-- Transition: running -> retrying, cancelled, dead or unknown, as decided from the locked row.
-- Guard: id, fence and stage as locked; the lease is expired.
-- Writes: the job with a new fence, so that the lost owner's writes are refused, one more lost lease if the loss
-- counts, and the lane in which it runs alone from now on; an attempt with outcome `lost`, which charges nothing.
-- The guards stand in a sub-select of their own: in a join, a table whose statistics know no running row makes
-- the planner read the table first and the given rows once for each.
-- Returns: id and state of the jobs taken over.
WITH decided AS MATERIALIZED (
    SELECT
        lost.id, lost.fence AS lost_fence, lost.worker_id AS lost_worker_id, verdict.target, verdict.delay_seconds,
        verdict.message, verdict.probe, verdict.lane, verdict.counts
    FROM unnest(
        %(ids)s::bigint[], %(fences)s::bigint[], %(stages)s::text[], %(targets)s::text[],
        %(delay_seconds)s::float8[], %(messages)s::text[], %(probes)s::bool[],
        %(lanes)s::smallint[], %(counts)s::bool[]
    ) AS verdict (id, fence, stage, target, delay_seconds, message, probe, lane, counts)
    CROSS JOIN LATERAL (
        SELECT job.id, job.fence, job.worker_id
        FROM pgqueue_job AS job
        WHERE job.id = verdict.id
            AND job.fence = verdict.fence
            AND job.stage = verdict.stage
            AND job.lease_until <= statement_timestamp()
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS lost
),
taken AS (
    UPDATE pgqueue_job AS job
    SET state = decided.target,
        version = job.version + 1,
        fence = nextval('pgqueue_fence'),
        lease_losses = job.lease_losses + decided.counts::int,
        lane = decided.lane,
        worker_id = NULL,
        lease_until = NULL,
        run_at = CASE
            WHEN decided.target = 'retrying'
                THEN statement_timestamp() + make_interval(secs => decided.delay_seconds)
            ELSE job.run_at
        END,
        probe_at = CASE WHEN decided.probe THEN statement_timestamp() END,
        probes = 0,
        finished_at = CASE WHEN decided.target IN ('dead', 'cancelled') THEN statement_timestamp() END,
        last_error_class = 'pgqueue.exceptions.JobLostError',
        last_error = decided.message
    FROM decided
    WHERE job.id = decided.id
    RETURNING
        job.id, job.state, job.stage, job.attempts, job.claimed_at, job.last_error_class, decided.lost_fence,
        decided.lost_worker_id, decided.message
),
attempts AS (
    INSERT INTO pgqueue_attempt (
        job_id, fence, worker_id, claimed_at, ended_at, number, outcome, stage, failure_class, error_class,
        message
    )
    SELECT
        taken.id, taken.lost_fence, taken.lost_worker_id, taken.claimed_at, statement_timestamp(),
        taken.attempts + 1, 'lost', taken.stage, 'lease_lost', taken.last_error_class, taken.message
    FROM taken
)
SELECT taken.id, taken.state
FROM taken
