"""Plans on a realistic mix: a million finished rows and twenty thousand live ones.

With statistics that are fresh, and with those of a table that had no live row yet when it was last analysed: a
queue that fills faster than autovacuum looks. The worker must not be at the planner's mercy.
"""

import pytest

from tests.plans.filling import ADD_FINISHED, ADD_LIVE, BATCH, FINISHED, LIVE, TASK, schema
from tests.plans.statements import measure_all

RUNNING = RECOVERED = LIVE // 10 + 100
"""Rows that are running are as many as all workers have threads; those that have lost a lease are fewer still."""
MOST_ROWS = {
    "look": 1_000 + BATCH,
    "count_live": RUNNING + 10 * BATCH,
    "count_by_queue": RUNNING + 10 * BATCH,
    "count_standing": 3 * RUNNING + BATCH,
    "list_queues": RUNNING + BATCH,
    "list_expired": RUNNING,
    "find_blockers": RUNNING,
    "find_unheard": RUNNING,
    # They write a batch, into indexes that are deeper beside a million other rows: ten blocks for each. A renewal need
    # not, unless its pages are full, because some other session keeps what was rolled back from being cleared away.
    "ask_to_stop": 10 * BATCH,
    "renew": 10 * BATCH,
    "pick_laned": RECOVERED + RUNNING + 3 * BATCH,
    "pick_bound of lane 2": RECOVERED + RUNNING + 3 * BATCH,
    "pick_bound of lane 3": RECOVERED + RUNNING + 3 * BATCH,
    "claim_picked": RECOVERED + RUNNING + 10 * BATCH,
}


def fill_and_measure(connection):
    """Return the plans of the live rows alone, and with history, by step and statement."""
    connection.execute(ADD_LIVE, {"count": LIVE, "task": TASK})
    connection.execute("ANALYZE")
    before = measure_all(connection, always_guarded=True)
    connection.execute("TRUNCATE pgqueue_job")
    connection.execute(ADD_FINISHED, {"count": FINISHED, "task": TASK})
    connection.execute("VACUUM ANALYZE")
    connection.execute(ADD_LIVE, {"count": LIVE, "task": TASK})
    steps = {"stale": measure_all(connection), "stale and prepared": measure_all(connection, generic=True)}
    connection.execute("ANALYZE")
    steps |= {"fresh": measure_all(connection), "fresh and prepared": measure_all(connection, generic=True)}
    return before, steps


def reads_by_index(name, plan, before):
    assert [node.kind for node in plan.nodes if node.kind == "Seq Scan" and node.reads("pgqueue_job")] == []


def reads_no_more_than_its_batch(name, plan, before):
    assert 0 < plan.rows_read() <= MOST_ROWS.get(name, 10 * BATCH)


def pays_nothing_for_finished_rows(name, plan, before):
    """Blocks touched, against the same live rows without any history: an index may be a level deeper."""
    if name == "requeue":
        return  # Without history it has nothing to do.
    assert plan.blocks <= 2 * before.blocks + MOST_ROWS.get(name, 0) + 50


def locks_in_order_and_nothing_in_vain(name, plan, before):
    """No sort above the claim's lock, so that it locks one row after the other and stops at its limit."""
    if not name.startswith(("claim of", "claim_behind")):
        return
    locks = [node for node in plan.nodes if node.kind == "LockRows"]
    assert locks
    assert not [kind for node in locks for kind in kinds_above(node) if "Sort" in kind]
    assert round(sum(node.facts["Actual Rows"] * node.facts["Actual Loops"] for node in locks)) == BATCH


def kinds_above(node):
    kinds = []
    while node.above is not None:
        node = node.above
        kinds.append(node.kind)
    return kinds


CHECKS = (
    reads_by_index,
    reads_no_more_than_its_batch,
    pays_nothing_for_finished_rows,
    locks_in_order_and_nothing_in_vain,
)


@pytest.fixture(scope="module")
def measured(django_db_setup, django_db_blocker):
    """Of the module, and so outside the test's transaction: other sessions must see the schema."""
    with django_db_blocker.unblock(), schema() as connection:
        return fill_and_measure(connection)


@pytest.mark.django_db
def test_every_statement_reaches_its_rows_by_an_index(measured, subtests):
    """One test, since filling the table costs more than all checks: which worker of xdist runs them is chance."""
    before, steps = measured
    for step, plans in steps.items():
        for name, plan in plans.items():
            for check in CHECKS:
                with subtests.test(msg=f"{name} {check.__name__} with {step} statistics"):
                    try:
                        check(name, plan, before[name])
                    except AssertionError as error:
                        error.add_note(plan.text)
                        raise
