-- Enqueue one job that has no arguments and none of the options that few have. Most are such, and this is what one costs
-- where the caller's connection prepares nothing: a statement is written, read and planned for every job.
-- Transition: none -> pending. Runs in the caller's transaction.
-- Writes: the job.
-- Returns: id, created_at; and wakes workers where that is asked, of a statement that is a transaction by itself.
INSERT INTO pgqueue_job (
    fence, version, created_at, run_at, priority, lane, attempts, max_attempts, lease_losses, unknown_effects, state,
    queue, task, recovery, stage
)
VALUES (
    0, 1, statement_timestamp(), statement_timestamp(), %(priority)s::smallint, 0, 0, %(max_attempts)s::smallint, 0, 0,
    'pending', %(queue)s::text, %(task)s::text, %(recovery)s::text, 'not_called'
)
RETURNING
    id, created_at,
    CASE WHEN %(wakes)s::bool THEN pg_notify('pgqueue', %(queue)s::text) IS NULL ELSE false END AS woken
