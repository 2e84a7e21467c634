"""A batch of pruning reads its batch, however many rows are young, and whatever the statistics say."""

import pytest

from tests.plans.filling import BATCH, explain, schema, undone

ROWS = 20_000
FILL = {
    "pgqueue_worker": """
        INSERT INTO pgqueue_worker (
            started_at, heartbeat_at, lease_seconds, pid, slots, draining, host, version, release, excluded_queues,
            tasks
        )
        SELECT now(), now() - make_interval(days => n %% 10), 60, n, 1, false, 'host', 1, '0', '[]', '[]'
        FROM generate_series(1, %(rows)s::int) AS n
    """,
    "pgqueue_window": """
        INSERT INTO pgqueue_window (job_id, created_at, ends_at, task, key)
        SELECT n, now(), now() - make_interval(days => n %% 10), 'task', 'key' || n
        FROM generate_series(1, %(rows)s::int) AS n
    """,
    "pgqueue_minutestat": """
        INSERT INTO pgqueue_minutestat (minute, jobs, queue, task, outcome, error, waits, runs)
        SELECT now() - make_interval(mins => n), 1, 'default', 'task', 'succeeded', '', '{1}', '{1}'
        FROM generate_series(1, %(rows)s::int) AS n
    """,
}
STATEMENTS = {
    "prune_workers": "pgqueue_worker",
    "prune_windows": "pgqueue_window",
    "prune_minute_stats": "pgqueue_minutestat",
}


@pytest.fixture(scope="module")
def measured(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock(), schema() as connection:
        connection.execute("ANALYZE")
        for statement in FILL.values():
            connection.execute(statement, {"rows": ROWS})
        plans = {}
        for statistics in ("stale", "fresh"):
            for name in STATEMENTS:
                with undone(connection):
                    params = {"after_id": 1_000, "limit": BATCH, "retention_seconds": 7 * 86_400.0}
                    plans[statistics, name] = explain(connection, name, params)
            connection.execute("ANALYZE")
        return plans


@pytest.mark.django_db
@pytest.mark.parametrize("statistics", ["stale", "fresh"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_a_batch_reads_its_batch(measured, statistics, name):
    plan, table = measured[statistics, name], STATEMENTS[name]
    assert [node.kind for node in plan.nodes if node.kind == "Seq Scan" and node.reads(table)] == []
    assert 0 < plan.rows_read(table) <= 3 * BATCH, plan.text
