-- Notify on a channel, once for each payload. Sent outside the transaction that made the work.
-- Returns: nothing of use.
SELECT pg_notify(%(channel)s::text, named.payload)
FROM unnest(%(payloads)s::text[]) AS named (payload)
