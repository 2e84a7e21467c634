"""The statements that act on a set of 10,000 jobs, where an older set, all done, is all that the statistics know.

Two plans that seem to cost the same are decided by a hair: each statement is measured with the planner's own choice
and with nothing but nested loops. No plan may compare every row of the set with every row of a chunk.
"""

import json
import uuid

import pytest

from tests.plans.filling import ADD_LIVE, TASK, explain, schema, undone

pytestmark = pytest.mark.django_db

SET = 10_000
CHUNK = 200
OLDER, NEWER = uuid.uuid4(), uuid.uuid4()

ADD_SET = """
    INSERT INTO pgqueue_bulkitem (bulk_id, job_id, version_seen, position)
    SELECT %(id)s::uuid, n, 1, n FROM generate_series(1, %(size)s::int) AS n
"""
ADD_ACTIONS = """
    INSERT INTO pgqueue_operatoraction (
        created_at, verb, target_kind, target_id, outcome, actor_name, reason, ticket, idempotency_key, params, facts
    )
    SELECT now(), 'requeue', 'job', n, 'applied', 'ada', 'r', '', 'bulk:' || %(id)s || ':' || n, '{}', '{}'
    FROM generate_series(1, %(size)s::int) AS n
"""
ADD_BULK = """
    INSERT INTO pgqueue_bulkaction (
        id, created_at, started_at, spread_seconds, size, capped, state, verb, actor_name, started_by_name, stopped_by,
        filter, reason, ticket
    )
    VALUES (%(id)s, now(), now(), 0, %(size)s, false, 'running', 'requeue', 'ada', 'ada', '', '', 'r', '')
"""

CHUNK_IDS = list(range(1, CHUNK + 1))
RESULT = {"outcome": "applied", "version_found": 1, "state_found": "dead", "audit_id": 1}
STATEMENTS = {
    "list_bulk_items": {"id": NEWER, "limit": CHUNK},
    "note_bulk_items": {
        "id": NEWER,
        "job_ids": CHUNK_IDS,
        "results": json.dumps({str(id): RESULT for id in CHUNK_IDS}),
    },
    "find_replay": {
        "idempotency_key": [f"bulk:{NEWER}:{id}" for id in CHUNK_IDS],
        "params": ["{}"] * CHUNK,
    },
    "finish_bulk": {"id": NEWER},
    "preview_bulk": {"id": NEWER},
}


@pytest.fixture(scope="module")
def filled(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock(), schema() as connection:
        connection.execute("ALTER TABLE pgqueue_bulkitem SET (autovacuum_enabled = false)")
        connection.execute("ALTER TABLE pgqueue_operatoraction SET (autovacuum_enabled = false)")
        connection.execute(ADD_LIVE, {"count": SET, "task": TASK})
        for id in (OLDER, NEWER):
            for statement in (ADD_SET, ADD_ACTIONS, ADD_BULK):
                connection.execute(statement, {"id": str(id), "size": SET})
            if id == OLDER:
                connection.execute("UPDATE pgqueue_bulkitem SET outcome = 'applied'")
                connection.execute("VACUUM ANALYZE")
        yield connection


@pytest.mark.parametrize("joins", ["any", "nested loops"])
@pytest.mark.parametrize("name", STATEMENTS)
def test_no_plan_compares_all_rows_of_a_set_with_all_of_a_chunk(filled, name, joins):
    with undone(filled, guarded=False):
        if joins == "nested loops":
            filled.execute("SET LOCAL enable_hashjoin = off")
            filled.execute("SET LOCAL enable_mergejoin = off")
        plan = explain(filled, name, STATEMENTS[name])
    assert plan.most_rows() <= 2 * SET, plan.text
