-- Let the lease of a running job have run out, as if a test had waited for it.
-- Transition: none; version unchanged, as by the passing of time.
-- Writes: lease_until.
-- Returns: id; no row when the job is not running.
UPDATE pgqueue_job AS job
SET lease_until = statement_timestamp() - interval '1 second'
WHERE job.id = %(id)s::bigint AND job.state = 'running'
RETURNING job.id
