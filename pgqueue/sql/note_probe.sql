-- Write down that a question is asked, in the transaction that leased it.
INSERT INTO pgqueue_probe (job_id, fence, worker_id, asked_at, effect)
VALUES (
    %(id)s::bigint, %(fence)s::bigint, %(worker_id)s::bigint, statement_timestamp(), %(effect)s::text
)
