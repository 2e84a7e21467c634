-- Read one job with its payload and result, where it is written: a replica may lag.
-- Returns: one row, or none.
SELECT
    job.id, job.task, job.state, job.queue, job.priority, job.fence, job.attempts, job.worker_id, job.settled_by,
    job.created_at, job.claimed_at, job.started_at, job.finished_at,
    payload.args::text AS args, payload.kwargs::text AS kwargs, result.value::text AS result,
    job.purged_at IS NOT NULL AS is_purged
FROM pgqueue_job AS job
LEFT JOIN pgqueue_jobpayload AS payload ON payload.job_id = job.id
LEFT JOIN pgqueue_jobresult AS result ON result.job_id = job.id
WHERE job.id = %(id)s::bigint
