-- Note what came of one row of a bulk action.
-- Guard: nothing is noted yet.
-- Returns: nothing.
UPDATE pgqueue_bulkitem AS item
SET outcome = %(outcome)s::text,
    version_found = %(version_found)s::bigint,
    state_found = %(state_found)s::text,
    audit_id = %(audit_id)s::bigint
WHERE item.bulk_id = %(id)s::uuid
    AND item.job_id = %(job_id)s::bigint
    AND item.outcome IS NULL
