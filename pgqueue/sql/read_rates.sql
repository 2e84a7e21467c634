-- Read how many jobs ended within the last five minutes, by queue.
-- Returns: queue, jobs.
SELECT stat.queue, sum(stat.jobs)::bigint
FROM pgqueue_minutestat AS stat
WHERE stat.minute > statement_timestamp() - interval '5 minutes'
GROUP BY stat.queue
