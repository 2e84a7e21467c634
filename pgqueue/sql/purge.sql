-- Purge an ended job of what may be personal: its arguments and result, the texts of errors, what effects answered.
-- Transition: none; version + 1.
-- Guard: id, version seen, state, not purged before; under the row's lock.
-- Writes: the job, which is marked; its payload and result, deleted; the texts of its attempts, effects, probes and
-- requests for approval. An attempt's mark keeps a late result out, see `keep_evidence.sql`.
-- Returns: version after, state and queue; no row when a guard refused.
WITH purged AS (
    UPDATE pgqueue_job AS job
    SET purged_at = statement_timestamp(), version = job.version + 1, last_error = NULL
    WHERE job.id = %(id)s::bigint
        AND job.version = %(version_seen)s::bigint
        AND job.state IN ('succeeded', 'dead', 'cancelled')
        AND job.purged_at IS NULL
    RETURNING job.id, job.version, job.state, job.queue
),
payloads AS (
    DELETE FROM pgqueue_jobpayload AS payload USING purged WHERE payload.job_id = purged.id
),
results AS (
    DELETE FROM pgqueue_jobresult AS result USING purged WHERE result.job_id = purged.id
),
attempts AS (
    UPDATE pgqueue_attempt AS attempt
    SET message = NULL, traceback = NULL, evidence = '"purged"'
    FROM purged
    WHERE attempt.job_id = purged.id
),
effects AS (
    UPDATE pgqueue_effect AS effect
    SET result = NULL, evidence = NULL
    FROM purged
    WHERE effect.job_id = purged.id
),
probes AS (
    UPDATE pgqueue_probe AS probe SET detail = NULL FROM purged WHERE probe.job_id = purged.id
),
requests AS (
    UPDATE pgqueue_approvalrequest AS request
    SET params = '{}'
    FROM purged
    WHERE request.target_kind = 'job' AND request.target_id = purged.id::text
)
SELECT purged.version, purged.state, purged.queue
FROM purged
