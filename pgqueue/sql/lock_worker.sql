-- Lock one worker's row for an operator's action. Waits at most lock_timeout.
-- Returns: what the verb decides from and the audit records; no row when it is not known any more.
SELECT
    worker.id, worker.version,
    CASE
        WHEN worker.stopped_at IS NOT NULL THEN 'stopped'
        WHEN worker.heartbeat_at < statement_timestamp() - make_interval(secs => worker.lease_seconds) THEN 'silent'
        WHEN worker.draining OR worker.drain_requested_at IS NOT NULL THEN 'draining'
        ELSE 'alive'
    END AS state,
    worker.host, worker.pid, ARRAY(SELECT jsonb_array_elements_text(worker.queues)) AS queues,
    (extract(epoch FROM statement_timestamp()) - extract(epoch FROM worker.heartbeat_at))::float8 AS silent_seconds,
    (SELECT count(*) FROM pgqueue_job AS job WHERE job.state = 'running' AND job.worker_id = worker.id) AS leases
FROM pgqueue_worker AS worker
WHERE worker.id = %(id)s::bigint
FOR NO KEY UPDATE OF worker
