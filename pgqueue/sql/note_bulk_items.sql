-- Note what came of rows of a bulk action. Each row looks up its own: joined with them, by statistics that know only
-- rows that were noted long ago, the planner compares every row of the set with every one given.
-- Guard: nothing is noted yet.
-- Returns: nothing.
UPDATE pgqueue_bulkitem AS item
SET (outcome, version_found, state_found, audit_id) = (
    SELECT told.outcome, told.version_found, told.state_found, told.audit_id
    FROM jsonb_to_record(%(results)s::jsonb -> item.job_id::text)
        AS told (outcome text, version_found bigint, state_found text, audit_id bigint)
)
WHERE item.bulk_id = %(id)s::uuid
    AND item.job_id = ANY (%(job_ids)s::bigint[])
    AND item.outcome IS NULL
