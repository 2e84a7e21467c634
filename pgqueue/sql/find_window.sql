-- Read whose window it is. Sent after `enqueue_in_window.sql` gave no row: a new snapshot sees the winner.
-- Returns: job_id, created_at.
SELECT latest.job_id, latest.created_at
FROM pgqueue_window AS latest
WHERE latest.task = %(task)s::text AND latest.key = %(unique_key)s::text
