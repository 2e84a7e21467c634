-- Tell of workers that lost jobs whether the worker that started each as its quarantine is alive. Sent after the
-- jobs' rows are locked, in the same transaction: one statement has one snapshot.
-- Guard: the parent of this worker, it has not stopped, its last heartbeat is less than half a lease ago.
-- A parent beats at least twice per lease. If a host is lost, the parent's last heartbeat is about as old as the
-- child's last renewal, so it is more than half a lease old once the child's lease has run out.
-- Returns: id of each worker that has a parent, and whether the parent is alive.
SELECT
    child.id,
    EXISTS (
        SELECT
        FROM pgqueue_worker AS parent
        WHERE parent.id = child.parent_id
            AND parent.stopped_at IS NULL
            AND parent.heartbeat_at > statement_timestamp() - make_interval(secs => parent.lease_seconds / 2)
    ) AS is_alive
FROM pgqueue_worker AS child
WHERE child.id = ANY (%(worker_ids)s::bigint[])
    AND child.parent_id IS NOT NULL
