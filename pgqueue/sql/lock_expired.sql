-- Lock running jobs whose lease has run out; first half of a takeover, in one transaction with `take_over.sql`.
-- Guard: still running and still expired when the lock is held; nobody else holds it; not one of `kept`, which the
-- caller, as `worker_id`, runs itself. The caller's own late ending is accepted unless another worker takes the job
-- over. Locked rows are passed over, and the order is by chance, so that rows nobody can write do not stand before
-- the others for ever.
-- COALESCE hides the state from partial indexes: with statistics from before the rows ran, the one of all running rows
-- looks as cheap as the primary key.
-- Returns: the columns that the decision table looks at, as locked.
SELECT
    job.id, job.fence, job.queue, job.task, job.recovery, job.stage, job.unknown_effects,
    job.stop_requested_at IS NOT NULL AS stop_requested, job.attempts, job.max_attempts, job.lease_losses,
    job.lane, job.worker_id, COALESCE(job.replay_until > statement_timestamp(), false) AS replay_safe
FROM pgqueue_job AS job
WHERE job.id = ANY (%(ids)s::bigint[])
    AND coalesce(job.state = 'running', FALSE)
    AND job.lease_until <= statement_timestamp()
    AND NOT (job.worker_id = %(worker_id)s::bigint AND job.id = ANY (%(kept)s::bigint[]))
ORDER BY random()
LIMIT %(limit)s::int
FOR NO KEY UPDATE SKIP LOCKED
