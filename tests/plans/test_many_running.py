"""A look reads so many running rows and no more, and a takeover reads those that the look has found."""

import pytest

from tests.plans.filling import BATCH, COLUMNS, TASK, WORKER, explain, schema, undone
from tests.plans.statements import CLAIMANT

RUNNING = 50_000
WATCHED = 1_000
ADD_RUNNING = f"""
    INSERT INTO pgqueue_job ({COLUMNS})
    SELECT
        now(), now(), n %% 100, NULL, n, 2, now() + interval '1 h', now(), NULL, NULL, 0, 0, 0, 8, 0, 0, 'running',
        'q1', %(task)s, 'undeclared', 'not_called', NULL, NULL
    FROM generate_series(1, %(count)s::int) AS n
"""


@pytest.fixture(scope="module")
def measured(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock(), schema() as connection:
        connection.execute("ANALYZE")
        connection.execute(ADD_RUNNING, {"count": RUNNING, "task": TASK})
        ids = [id for (id,) in connection.execute("SELECT id FROM pgqueue_job LIMIT %s", [BATCH]).fetchall()]
        plans = {}
        for statistics in ("stale", "fresh"):
            for generic in (False, True):
                step = f"{statistics} and prepared" if generic else statistics
                for from_worker in (0, 50, 99):
                    asked = {"from_worker": from_worker, "watched": WATCHED, "most_expired": BATCH}
                    with undone(connection):
                        plans[step, f"look from {from_worker}"] = explain(
                            connection, "look", {**CLAIMANT, **asked}, generic=generic
                        )
                with undone(connection):
                    plans[step, "lock_expired"] = explain(
                        connection,
                        "lock_expired",
                        {"ids": ids, "limit": BATCH, "worker_id": WORKER, "kept": []},
                        generic=generic,
                    )
            connection.execute("ANALYZE")
        return plans


@pytest.mark.django_db
def test_a_look_reads_so_many_running_rows_and_no_more(measured, subtests):
    for (step, name), plan in measured.items():
        with subtests.test(msg=f"{name} with {step} statistics"):
            assert [node.kind for node in plan.nodes if node.kind == "Seq Scan" and node.reads("pgqueue_job")] == []
            assert plan.rows_read() <= WATCHED + BATCH, plan.text
