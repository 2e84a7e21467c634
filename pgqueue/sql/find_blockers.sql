-- Find the sessions that hold the rows of running jobs whose lease has run out, so that nobody can take these over.
-- A row's `xmax` is the transaction that has locked or changed it; `pg_locks` knows whose that is. Several lockers of one
-- row together have no session of that number, and are not found.
-- With `ends`, end in the same statement a session whose transaction wrote the completion of such a job: `complete.sql`
-- names it so. Its COMMIT is not on its way any more, and what it did is rolled back.
-- Guard: the lease has expired; named after this job and fence; idle in its transaction; for a second; this role may
-- end it.
-- Returns: the job, its fence, seconds since its lease ran out, the session's process id, role and state, seconds since it
-- got into that state, and whether it was ended. State and seconds are null where this role may not see them.
WITH stuck AS MATERIALIZED (
    SELECT job.id, job.fence, job.xmax AS holder, statement_timestamp() - job.lease_until AS expired
    FROM pgqueue_job AS job
    WHERE job.state = 'running'
        AND job.lease_until <= statement_timestamp() - make_interval(secs => %(expired_seconds)s::float8)
    ORDER BY random()
    LIMIT %(limit)s::int
),
blocking AS MATERIALIZED (
    SELECT
        stuck.id, stuck.fence, stuck.expired, session.pid, session.usesysid, session.state,
        statement_timestamp() - session.state_change AS since,
        session.application_name = 'pgqueue job=' || stuck.id || ' fence=' || stuck.fence
        AND session.state = 'idle in transaction'
        AND session.state_change <= statement_timestamp() - interval '1 second'
        AND (current_setting('is_superuser')::bool OR NOT role.rolsuper)
        AND (pg_has_role(session.usesysid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE')) AS may_end
    FROM stuck
    CROSS JOIN LATERAL (
        SELECT lock.pid
        FROM pg_locks AS lock
        WHERE lock.locktype = 'transactionid' AND lock.granted AND lock.transactionid = stuck.holder
        LIMIT 1
    ) AS held
    CROSS JOIN LATERAL pg_stat_get_activity(held.pid) AS session
    JOIN pg_roles AS role ON role.oid = session.usesysid
)
SELECT
    blocking.id, blocking.fence, extract(epoch FROM blocking.expired)::float8 AS expired_seconds, blocking.pid,
    pg_get_userbyid(blocking.usesysid)::text AS role, blocking.state,
    extract(epoch FROM blocking.since)::float8 AS state_seconds,
    CASE WHEN %(ends)s::bool AND blocking.may_end THEN pg_terminate_backend(blocking.pid) ELSE FALSE END AS ended
FROM blocking
ORDER BY blocking.expired DESC, blocking.id
