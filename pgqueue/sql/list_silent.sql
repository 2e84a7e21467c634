-- List workers that have missed a whole lease and still hold leases, or that fell silent lately while no worker
-- for the same queues has started since. The worker that started a quarantine starts the next one itself.
-- Returns: worker, host, pid, seconds since it was heard, leases, seconds until the first of them ends.
SELECT
    worker.id, worker.host, worker.pid,
    (extract(epoch FROM statement_timestamp()) - extract(epoch FROM worker.heartbeat_at))::float8 AS silent_seconds,
    count(job.id) AS leases,
    (extract(epoch FROM min(job.lease_until)) - extract(epoch FROM statement_timestamp()))::float8 AS expiry_seconds
FROM pgqueue_worker AS worker
LEFT JOIN pgqueue_job AS job ON job.worker_id = worker.id AND job.state = 'running'
WHERE worker.stopped_at IS NULL
    AND worker.heartbeat_at < statement_timestamp() - make_interval(secs => worker.lease_seconds)
    AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(within_seconds)s::float8)
GROUP BY worker.id
HAVING count(job.id) > 0
    OR (
        worker.parent_id IS NULL
        AND worker.heartbeat_at > statement_timestamp() - make_interval(secs => %(missed_within_seconds)s::float8)
        AND NOT EXISTS (
            SELECT
            FROM pgqueue_worker AS other
            WHERE other.stopped_at IS NULL
                AND other.parent_id IS NULL
                AND other.heartbeat_at > statement_timestamp() - make_interval(secs => other.lease_seconds)
                AND other.started_at > worker.heartbeat_at
                AND other.queues IS NOT DISTINCT FROM worker.queues
                AND other.excluded_queues IS NOT DISTINCT FROM worker.excluded_queues
        )
    )
ORDER BY worker.id DESC
LIMIT 100
