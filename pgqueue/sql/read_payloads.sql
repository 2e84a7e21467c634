-- Read arguments again, of jobs whose arguments a later enqueue replaced: a claim that began before its COMMIT was
-- told the old ones. Sent once the claim holds the rows, so that nobody can replace them any more.
-- Returns: job_id, args, kwargs.
SELECT payload.job_id, payload.args::text AS args, payload.kwargs::text AS kwargs
FROM pgqueue_jobpayload AS payload
WHERE payload.job_id = ANY (%(ids)s::bigint[])
