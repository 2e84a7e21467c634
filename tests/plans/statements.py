"""Each statement with parameters as a worker or an operator sends them, on the rows of `filling`."""

from pgqueue.protocol.claiming import Claimant
from pgqueue.protocol.marks import as_param, as_params
from tests.plans.filling import BATCH, TASK, WORKER, explain, undone
from tests.statements.doing import NEW_ROUND

CLAIMANT = Claimant(worker_id=WORKER, tasks=(TASK,), lease_seconds=60.0).params()
LOOKING = {**CLAIMANT, "from_worker": WORKER, "watched": 1_000, "most_expired": BATCH}
WHOLE = {"from_lowest": False, **as_params({})}
MARKED = as_params({("q1", 0, TASK): (0.0, 0), ("q2", 5, TASK): (0.0, 0)})
FAILED = ("failure_classes", "error_classes", "messages", "tracebacks")


def ids_of(connection, condition, limit=BATCH):
    query = f"SELECT id, fence FROM pgqueue_job WHERE {condition} ORDER BY id LIMIT {limit}"
    rows = connection.execute(query).fetchall()
    return [id for id, _ in rows], [fence for _, fence in rows]


def statements(connection):
    """Return each statement with its parameters, and whether the worker sends it in a guarded transaction."""
    ids, fences = ids_of(connection, f"state = 'running' AND worker_id = {WORKER} AND lease_until > now()")
    lost_ids, lost_fences = ids_of(connection, "state = 'running' AND lease_until <= now()")
    laned, _ = ids_of(connection, "lane = 1 AND state = 'pending'")
    held = {"ids": ids, "fences": fences, "worker_id": WORKER}
    unheld = {"hold_ms": None, "backend_pid": None}
    count = len(ids)
    waiting = {"id": laned, "version_seen": [2] * len(laned)}
    dead, _ = ids_of(connection, "state = 'dead'")
    failed = {**held, "run_seconds": [1.0] * count, **{name: ["x"] * count for name in FAILED}}
    mine = {"worker_id": WORKER, "kept": ids}
    verdicts = {
        "ids": lost_ids,
        "fences": lost_fences,
        "stages": ["not_called"] * len(lost_ids),
        "targets": ["retrying"] * len(lost_ids),
        "delay_seconds": [0.0] * len(lost_ids),
        "messages": ["lost"] * len(lost_ids),
        "probes": [False] * len(lost_ids),
        "lanes": [2] * len(lost_ids),
        "counts": [True] * len(lost_ids),
    }
    return {
        "claim of all queues": ({**CLAIMANT, **WHOLE, "limit": BATCH}, True),
        "claim of one queue": (
            {**CLAIMANT, **WHOLE, "limit": BATCH, "queues": ["q1"]},
            True,
        ),
        "claim of named queues": (
            {**CLAIMANT, **WHOLE, "limit": BATCH, "queues": ["q1", "q2"]},
            True,
        ),
        "claim of marked groups": ({**CLAIMANT, "limit": BATCH, "from_lowest": False, **MARKED}, True),
        "claim_behind": ({**CLAIMANT, "limit": BATCH, **as_param(("q1", 0, TASK), (0.0, 0))}, True),
        "pick_laned": ({**CLAIMANT, **NEW_ROUND, "limit": BATCH, "lane": 1}, True),
        "pick_bound of lane 2": ({**CLAIMANT, **NEW_ROUND, "limit": 1, "lane": 2}, True),
        "pick_bound of lane 3": ({**CLAIMANT, **NEW_ROUND, "limit": 1, "lane": 3}, True),
        "claim_picked": ({**CLAIMANT, "ids": laned, "locked": []}, True),
        "renew": ({**held, "lease_seconds": 60.0}, True),
        "complete": ({**held, **unheld, "run_seconds": [1.0] * count, "results": ["1"] * count}, True),
        "complete_first": (
            {"id": ids[0], "fence": fences[0], "worker_id": WORKER, "run_seconds": 1.0, **unheld},
            False,
        ),
        "retry": ({**failed, "delay_seconds": [1.0] * count}, True),
        "bury": (failed, True),
        "release": (held, True),
        "lock_expired": ({"ids": lost_ids, "limit": BATCH, **mine}, True),
        "take_over": (verdicts, True),
        "find_blockers": ({"expired_seconds": 0.0, "ends": True, "limit": BATCH}, True),
        "look": (LOOKING, True),
        "list_expired": ({"limit": BATCH}, False),
        "find_known_queues": ({"names": ["q1", "nobodys"]}, False),
        "has_limited": ({"kind": "tenant", "name": "nobody", "cap": BATCH}, False),
        "list_queues": ({"cap": 10_001, "most": 200}, False),
        "find_held": (held, False),
        "find_own_endings": (held, False),
        "find_unheard": ({"worker_id": WORKER, "held_ids": ids}, False),
        "lock_job": ({"id": ids[0]}, False),
        "ask_to_stop": ({"id": ids, "version_seen": [2] * count}, False),
        "lock_jobs": ({"ids": laned}, False),
        "find_jobs": ({"ids": laned}, False),
        "hold": (waiting, False),
        "reschedule": ({**waiting, "delay_seconds": [60.0] * len(laned)}, False),
        "reprioritise": ({**waiting, "priority": [7] * len(laned)}, False),
        "move_queue": ({**waiting, "queue": ["other"] * len(laned)}, False),
        "requeue": (
            {
                "id": dead or laned,
                "version_seen": [3] * len(dead or laned),
                "delay_seconds": [0.0] * len(dead or laned),
            },
            False,
        ),
        "cancel": (waiting, False),
        "give_up": (waiting, False),
        "break_lease": (
            {
                "id": ids[0],
                "fence": fences[0],
                "version_seen": 2,
                "stage": "not_called",
                "target": "retrying",
                "message": "m",
                "probe": False,
                "worker_id": WORKER,
            },
            False,
        ),
        "count_live": ({"cap": BATCH, "counted_bytes": 2**25}, False),
        "count_by_queue": ({"cap": BATCH, "most_queues": 200}, False),
        "count_still_dead": ({"errors": ["builtins.ValueError"], "cap": BATCH}, False),
        "count_standing": ({"cap": BATCH, "ids": None}, False),
        "count_standing of jobs": ({"cap": len(laned), "ids": laned}, False),
        "read_job": ({"id": ids[0]}, False),
    }


def measure(connection, name, changes=None):
    """Explain one statement, as it is sent, or with other parameters."""
    params, guarded = statements(connection)[name]
    with undone(connection, guarded=guarded):
        return explain(connection, name.split()[0], params | (changes or {}))


def measure_all(connection, *, always_guarded=False, generic=False):
    """Explain every statement."""
    plans = {}
    for name, (params, guarded) in statements(connection).items():
        with undone(connection, guarded=guarded or always_guarded):
            plans[name] = explain(connection, name.split()[0], params, generic=generic)
    return plans
