"""A hundred thousand rows in front of all others, that nobody may claim, cost a claim at most twice its time."""

import pytest

from pgqueue.protocol.marks import as_param, as_params
from tests.plans.filling import ADD_IN_FRONT, ADD_LIVE, GONE, IN_FRONT, LIVE, TASK, schema
from tests.plans.statements import measure

pytestmark = pytest.mark.django_db

CLAIM, PICK = "claim of all queues", "pick_laned"
DUE = {"due_in": "-1 s", "lane": 0, "queue": "q1", "task": TASK, "shard_key": None}
LANED = {**DUE, "lane": 1}
FRONTS = {
    "due next week": (CLAIM, {**DUE, "due_in": "7 days"}),
    "in a paused queue": (CLAIM, {**DUE, "queue": "frozen"}),
    "of a task unknown here": (CLAIM, {**DUE, "task": GONE}),
    "of a queue with a limit": (CLAIM, {**DUE, "queue": "full"}),
    "of a busy key": (PICK, {**LANED, "shard_key": "busy"}),
    "of a paused tenant": (PICK, {**LANED, "tenant": "frozen"}),
    "of a tenant at its limit": (PICK, {**LANED, "tenant": "full"}),
    "of a tenant, of a task unknown here": (PICK, {**LANED, "tenant": "acme", "task": GONE}),
}


@pytest.fixture(scope="module")
def live(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock(), schema() as connection:
        connection.execute(ADD_LIVE, {"count": LIVE, "task": TASK})
        connection.execute(
            "INSERT INTO pgqueue_queue (name, version, created_at, paused_at) VALUES ('frozen', 1, now(), now())"
        )
        connection.execute(
            "INSERT INTO pgqueue_limit (id, version, created_at, weight, max_running, paused_at) VALUES"
            " ('tenant:frozen', 1, now(), 1, NULL, now()), ('tenant:full', 1, now(), 1, 0, NULL),"
            " ('queue:full', 1, now(), 1, 0, NULL)"
        )
        connection.execute(
            "UPDATE pgqueue_job SET shard_key = 'busy', lane = 1, queue = 'q1' WHERE id ="
            " (SELECT id FROM pgqueue_job WHERE state = 'running' AND lease_until > now() LIMIT 1)"
        )
        connection.execute("ANALYZE")
        yield connection


@pytest.mark.parametrize("front", FRONTS)
def test_rows_in_front_that_nobody_may_claim_cost_at_most_twice(live, front):
    """By rows read and blocks touched, which no busy machine changes; by statistics that do not know them yet."""
    name, params = FRONTS[front]
    without = measure(live, name)
    with live.transaction(force_rollback=True):
        live.execute(ADD_IN_FRONT, {"tenant": None, **params, "count": IN_FRONT})
        behind = measure(live, name)
    assert behind.rows_read() <= 2 * without.rows_read(), behind.text
    assert behind.blocks <= 2 * without.blocks + 100, behind.text


def test_rows_that_were_claimed_and_are_not_vacuumed_cost_a_claim_behind_its_mark_nothing(live):
    """As under a long transaction: the index entry of each still stands, and leads to a row to be looked at."""
    params = {"tenant": None, **DUE, "queue": "drained", "due_in": "-1 hour"}
    name = "claim of all queues"
    live.execute("VACUUM pgqueue_job")  # What other tests rolled back is dead as well.
    without = measure(live, name)
    with live.transaction(force_rollback=True):
        live.execute(ADD_IN_FRONT, {**params, "count": IN_FRONT})
        last = live.execute(
            "SELECT max(id), extract(epoch FROM max(run_at))::float8 FROM pgqueue_job WHERE queue = 'drained'"
        )
        id, epoch = last.fetchone()
        live.execute("UPDATE pgqueue_job SET state = 'succeeded', finished_at = now() WHERE queue = 'drained'")
        whole = measure(live, name)
        behind = measure(live, name, as_params({("drained", 50, TASK): (epoch, id)}))
        alone = measure(live, "claim_behind", as_param(("drained", 50, TASK), (epoch, id)))
    assert whole.blocks > without.blocks + IN_FRONT // 100, "the rows cost nothing without marks: nothing was tested"
    assert behind.blocks <= without.blocks + 100, behind.text
    assert alone.blocks <= 100, alone.text
