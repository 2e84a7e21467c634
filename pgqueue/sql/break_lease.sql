-- Take a running job from its owner before the lease runs out, as the decision table says.
-- Transition: running -> retrying, cancelled, dead or unknown, as decided from the locked row.
-- Guard: id, version seen, fence and stage as locked, state; under the row's lock.
-- Writes: the job with a new fence, so that the owner's writes are refused; an attempt with outcome `lost`.
-- The loss is an operator's doing: it does not count against the job.
-- The state stands in a sub-select: with statistics that know no such row, the planner would read all that the
-- state's partial index holds rather than the row by its id.
-- Returns: version after and state; no row when a guard refused.
WITH broken AS (
    UPDATE pgqueue_job AS job
    SET state = %(target)s::text,
        version = job.version + 1,
        fence = nextval('pgqueue_fence'),
        worker_id = NULL,
        lease_until = NULL,
        run_at = CASE WHEN %(target)s::text = 'retrying' THEN statement_timestamp() ELSE job.run_at END,
        probe_at = CASE WHEN %(probe)s::bool THEN statement_timestamp() END,
        probes = 0,
        finished_at = CASE WHEN %(target)s::text IN ('dead', 'cancelled') THEN statement_timestamp() END,
        last_error_class = 'pgqueue.exceptions.JobLostError',
        last_error = %(message)s::text
    WHERE job.id = %(id)s::bigint
        AND job.version = %(version_seen)s::bigint
        AND job.fence = %(fence)s::bigint
        AND job.stage = %(stage)s::text
        AND (SELECT job.state) = 'running'
    RETURNING job.id, job.version, job.state, job.queue, job.stage, job.attempts, job.claimed_at
),
attempts AS (
    INSERT INTO pgqueue_attempt (
        job_id, fence, worker_id, claimed_at, ended_at, number, outcome, stage, failure_class, error_class, message
    )
    SELECT
        broken.id, %(fence)s::bigint, %(worker_id)s::bigint, broken.claimed_at, statement_timestamp(),
        broken.attempts + 1, 'lost', broken.stage, 'lease_lost', 'pgqueue.exceptions.JobLostError',
        %(message)s::text
    FROM broken
)
SELECT broken.version, broken.state, broken.queue
FROM broken
