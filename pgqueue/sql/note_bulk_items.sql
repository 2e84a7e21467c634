-- Note what came of rows of a bulk action.
-- Guard: nothing is noted yet.
-- Returns: nothing.
UPDATE pgqueue_bulkitem AS item
SET outcome = told.outcome,
    version_found = told.version_found,
    state_found = told.state_found,
    audit_id = told.audit_id
FROM unnest(
    %(job_ids)s::bigint[], %(outcomes)s::text[], %(versions_found)s::bigint[], %(states_found)s::text[],
    %(audit_ids)s::bigint[]
) AS told (job_id, outcome, version_found, state_found, audit_id)
WHERE item.bulk_id = %(id)s::uuid
    AND item.job_id = told.job_id
    AND item.outcome IS NULL
