-- Start a bulk action.
-- Transition: frozen -> running.
-- Guard: not started before.
-- Returns: id; no row when the guard refused.
UPDATE pgqueue_bulkaction AS bulk
SET state = 'running',
    started_at = statement_timestamp(),
    started_by_id = %(started_by_id)s::text,
    started_by_name = %(started_by_name)s::text,
    reason = %(reason)s::text,
    ticket = %(ticket)s::text,
    spread_seconds = %(spread_seconds)s::float8
WHERE bulk.id = %(id)s::uuid
    AND bulk.state = 'frozen'
RETURNING bulk.id
