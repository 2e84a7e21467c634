-- Count the rows of a bulk action without an outcome by what decides about them now. No locks.
-- Returns: what decides, and how many rows; `state` is null where the job is gone.
SELECT
    job.state, job.queue, job.task, job.version = item.version_seen AS is_unchanged,
    job.unknown_effects, job.stop_requested_at IS NOT NULL AS stop_requested,
    job.purged_at IS NOT NULL AS is_purged, job.compensated_at IS NOT NULL AS is_compensated,
    count(*) AS jobs,
    count(*) FILTER (
        WHERE EXISTS (
            SELECT FROM pgqueue_effect AS effect WHERE effect.job_id = job.id AND effect.remote_reference IS NOT NULL
        )
    ) AS with_reference,
    (extract(epoch FROM statement_timestamp()) - extract(epoch FROM min(job.created_at)))::float8 AS oldest_seconds
FROM pgqueue_bulkitem AS item
LEFT JOIN pgqueue_job AS job ON job.id = item.job_id
WHERE item.bulk_id = %(id)s::uuid
    AND item.outcome IS NULL
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
ORDER BY count(*) DESC, 1, 2, 3
