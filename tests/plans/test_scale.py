"""A million waiting jobs of a thousand tenants and a hundred thousand keys: a claim reads little more than it takes.

With statistics from when the table was empty, and with fresh ones.
"""

import os
from itertools import product

import pytest

from pgqueue.protocol.marks import as_params
from tests.plans.filling import COLUMNS, TASK, explain, schema, undone
from tests.plans.statements import CLAIMANT
from tests.statements.doing import NEW_ROUND

WAITING = 100_000 if os.environ.get("PGQUEUE_SHORT") else 1_000_000
LIMIT = 10
MOST_ROWS = 2_000

OTHER_TASK = "tests.testapp.tasks.multiply"

# Of three jobs one has a tenant, one a key, one is plain, each of one of two tasks; every tenth tenant is paused, every
# seventh at its limit.
ADD_WAITING = f"""
    INSERT INTO pgqueue_job ({COLUMNS}, tenant)
    SELECT
        instant, instant, NULL, NULL, 0, 1, NULL, NULL, NULL, NULL, n %% 2,
        CASE WHEN n %% 3 = 2 THEN 0 ELSE 1 END, 0, 8, 0, 0, 'pending', 'default',
        CASE WHEN n %% 5 = 0 THEN %(other_task)s ELSE %(task)s END, 'undeclared', 'not_called',
        CASE WHEN n %% 3 = 0 THEN 'key' || n / 3 %% 100000 END, NULL,
        CASE WHEN n %% 3 = 1 THEN 'tenant' || n / 3 %% 1000 END
    FROM (
        SELECT n, statement_timestamp() - make_interval(secs => 10 + (%(count)s - n) / 1000.0) AS instant
        FROM generate_series(1, %(count)s::int) AS n
    ) AS waiting
"""
ADD_LIMITS = """
    INSERT INTO pgqueue_limit (id, version, created_at, weight, paused_at, max_running)
    SELECT 'tenant:tenant' || n, 1, now(), 1, CASE WHEN n % 10 = 0 THEN now() END, CASE WHEN n % 7 = 0 THEN 0 END
    FROM generate_series(0, 999) AS n
"""
TASKS = {"tasks": [TASK, OTHER_TASK]}
STATEMENTS = {
    "claim": {"limit": LIMIT, "from_lowest": False, **as_params({})},
    "claim of two tasks": {"limit": LIMIT, "from_lowest": False, **as_params({}), **TASKS},
    "claim from the lowest": {"limit": LIMIT, "from_lowest": True, **as_params({})},
    "pick_laned": {**NEW_ROUND, "limit": LIMIT, "lane": 1, "steps": 36},
    "pick_laned later in the round": {
        **NEW_ROUND,
        **{
            "limit": LIMIT,
            "lane": 1,
            "steps": 36,
            "next_tenant": "tenant500",
            "places": f'{{"": ["key50000", "{TASK}", ""]}}',
        },
    },
    "pick_laned of one": {**NEW_ROUND, **TASKS, "limit": 1, "lane": 1, "steps": 17},
    "pick_bound": {**NEW_ROUND, "limit": LIMIT, "lane": 0},
    "pick_bound of lane 2": {**NEW_ROUND, "limit": LIMIT, "lane": 2},
    "claim_picked": {"locked": []},
    "look": {"from_worker": 0, "watched": 1_000, "most_expired": LIMIT},
}


@pytest.fixture(scope="module")
def measured(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock(), schema() as connection:
        connection.execute("ANALYZE")
        connection.execute(ADD_WAITING, {"count": WAITING, "task": TASK, "other_task": OTHER_TASK})
        connection.execute(ADD_LIMITS)
        rows = connection.execute("SELECT id FROM pgqueue_job WHERE lane = 1 ORDER BY id LIMIT %s", [LIMIT]).fetchall()
        STATEMENTS["claim_picked"]["ids"] = [id for (id,) in rows]
        plans = {}
        for statistics in ("stale", "fresh"):
            for (name, params), prepared in product(STATEMENTS.items(), (False, True)):
                step = f"{statistics} and prepared" if prepared else statistics
                with undone(connection):
                    plans[step, name] = explain(connection, name.split()[0], {**CLAIMANT, **params}, generic=prepared)
            connection.execute("ANALYZE")
        return plans


@pytest.mark.bench
@pytest.mark.django_db
@pytest.mark.case("L01")
def test_a_claim_reads_what_it_takes_and_little_more(measured, subtests):
    for (step, name), plan in measured.items():
        print(f"{step:18} {name:32} {plan.rows_read():8.0f} rows {plan.blocks:8} blocks")
        with subtests.test(msg=f"{name} with {step} statistics"):
            assert [node.kind for node in plan.nodes if node.kind == "Seq Scan" and node.reads("pgqueue_job")] == []
            assert plan.rows_read() <= MOST_ROWS, plan.text
