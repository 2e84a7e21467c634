-- Keep the answer to a question, also one that comes too late to count.
-- Guard: id, fence, not answered before.
UPDATE pgqueue_probe AS probe
SET answered_at = statement_timestamp(), answer = %(answer)s::text, detail = %(detail)s::text
WHERE probe.job_id = %(id)s::bigint AND probe.fence = %(fence)s::bigint AND probe.answered_at IS NULL
