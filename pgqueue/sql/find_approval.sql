-- Find who approved a bulk action.
-- Returns: the name; no row when nobody has, or only for another verb.
SELECT request.decided_by
FROM pgqueue_approvalrequest AS request
WHERE request.target_kind = 'bulk'
    AND request.target_id = %(bulk_id)s::text
    AND request.verb = %(verb)s::text
    AND request.state = 'approved'
LIMIT 1
