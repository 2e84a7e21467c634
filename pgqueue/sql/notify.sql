-- Wake listening workers. Sent outside the transaction that made the work.
-- Returns: nothing of use.
SELECT pg_notify('pgqueue', named.queue)
FROM unnest(%(queues)s::text[]) AS named (queue)
