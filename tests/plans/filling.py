"""A schema of its own in the test database, filled step by step, and the plans of the statements at each step."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from django.core.management import call_command
from django.db import connection as django_connection
from django.db import connections

from pgqueue.protocol.connecting import connect, transaction
from pgqueue.sql import load

SCHEMA = "plans"
EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON)"
FINISHED = 100_000 if os.environ.get("PGQUEUE_SHORT") else 1_000_000
LIVE = 20_000
IN_FRONT = 100_000
BATCH = 100
WORKER = -101
TASK = "tests.testapp.tasks.add"
GONE = "tests.testapp.tasks.gone"

COLUMNS = """
    created_at, run_at, worker_id, settled_by, fence, version, lease_until, claimed_at, started_at, finished_at,
    priority, lane, attempts, max_attempts, lease_losses, unknown_effects, state, queue, task, recovery, stage,
    shard_key, last_error_class
"""

ADD_FINISHED = f"""
    INSERT INTO pgqueue_job ({COLUMNS})
    SELECT
        instant, instant, NULL, 1 + n %% 50, n, 3, NULL, instant, instant, instant,
        n %% 3, 0, 1, 8, 0, 0,
        CASE WHEN n %% 100 = 0 THEN 'dead' WHEN n %% 500 = 1 THEN 'cancelled' ELSE 'succeeded' END,
        'q' || n %% 4, %(task)s, 'undeclared', 'not_called', NULL, CASE WHEN n %% 100 = 0 THEN 'builtins.ValueError' END
    FROM (
        SELECT n, statement_timestamp() - make_interval(secs => %(count)s - n + 10) AS instant
        FROM generate_series(1, %(count)s::int) AS n
    ) AS finished
"""

# Of ten live rows six are due, one is due tomorrow, one has a shard key, one runs, one has lost a lease (in lane
# 2 or 3); of those that run, every tenth has expired.
ADD_LIVE = f"""
    INSERT INTO pgqueue_job ({COLUMNS})
    SELECT
        instant,
        CASE WHEN kind = 6 THEN instant + interval '1 day' ELSE instant END,
        CASE WHEN kind = 8 THEN -101 - n %% 3 END, NULL, 5000000 + n, 2,
        CASE WHEN kind = 8 THEN instant + CASE WHEN n %% 100 = 8 THEN interval '-1 s' ELSE interval '1 h' END END,
        CASE WHEN kind = 8 THEN instant END, NULL, NULL,
        n / 10 %% 3,
        CASE kind WHEN 7 THEN 1 WHEN 9 THEN 2 + n / 10 %% 2 ELSE 0 END, 0, 8, CASE WHEN kind = 9 THEN 1 ELSE 0 END, 0,
        CASE kind WHEN 8 THEN 'running' WHEN 9 THEN 'retrying' ELSE 'pending' END,
        'q' || n / 30 %% 4, %(task)s, 'undeclared', 'not_called',
        CASE WHEN kind = 7 THEN 'key' || n END, NULL
    FROM (
        SELECT n, n %% 10 AS kind, statement_timestamp() - interval '10 s' AS instant
        FROM generate_series(1, %(count)s::int) AS n
    ) AS live
"""

ADD_IN_FRONT = f"""
    INSERT INTO pgqueue_job ({COLUMNS}, tenant)
    SELECT
        statement_timestamp(), statement_timestamp() + %(due_in)s::interval, NULL, NULL, 0, 1, NULL, NULL, NULL, NULL,
        50, %(lane)s::int, 0, 8, 0, 0, 'pending', %(queue)s, %(task)s, 'undeclared', 'not_called', %(shard_key)s, NULL,
        %(tenant)s::text
    FROM generate_series(1, %(count)s::int)
"""


@dataclass
class Node:
    """One node of a plan, with the node above it in the same sub-plan."""

    facts: dict[str, Any]
    above: Node | None
    children: list[Node] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.facts["Node Type"]

    def reads(self, table: str) -> bool:
        return self.facts.get("Relation Name") == table and "Scan" in self.kind

    def rows_read(self) -> float:
        removed = self.facts.get("Rows Removed by Filter", 0) + self.facts.get("Rows Removed by Index Recheck", 0)
        return (self.facts["Actual Rows"] + removed) * self.facts["Actual Loops"]

    def rows_compared(self) -> float:
        return self.facts.get("Rows Removed by Join Filter", 0) * self.facts["Actual Loops"]


@dataclass
class Plan:
    """What EXPLAIN ANALYZE told of one statement."""

    nodes: list[Node]
    blocks: int
    text: str

    def rows_read(self, table: str = "pgqueue_job") -> float:
        return sum(node.rows_read() for node in self.nodes if node.reads(table))

    def most_rows(self) -> float:
        """Return how many rows went through its busiest node: returned, or compared in vain."""
        return max(node.rows_read() + node.rows_compared() for node in self.nodes)


def explain(connection: psycopg.Connection[Any], name: str, params: dict[str, Any], *, generic: bool = False) -> Plan:
    """Explain one statement of `pgqueue.sql` as it runs: with the plan for its parameters, or for any.

    A worker sends prepared statements, whose plan is generic; behind a pooler each is planned anew.
    """
    if generic:
        params = _prepare(connection, load(name), params)
        query = f"{EXPLAIN} EXECUTE explained ({', '.join(f'%({name})s' for name in params)})"
        row = psycopg.ClientCursor(connection).execute(query, params).fetchone()
        connection.execute("DEALLOCATE explained")
    else:
        row = connection.execute(f"{EXPLAIN}\n{load(name)}", params).fetchone()
    assert row is not None
    top = row[0][0]["Plan"]
    nodes: list[Node] = []
    _walk(top, None, nodes)
    return Plan(
        nodes,
        blocks=top["Shared Hit Blocks"] + top["Shared Read Blocks"],
        text=json.dumps(_short(top), indent=1),
    )


def _prepare(connection: psycopg.Connection[Any], text: str, params: dict[str, Any]) -> dict[str, Any]:
    """Prepare a statement, and return its parameters in the order of their numbers."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", text)))
    for number, name in enumerate(names, start=1):
        text = text.replace(f"%({name})s", f"${number}")
    connection.execute(f"PREPARE explained AS {text.replace('%%', '%')}")
    return {name: params[name] for name in names}


def _walk(facts: dict[str, Any], above: Node | None, nodes: list[Node]) -> None:
    node = Node(facts, above)
    nodes.append(node)
    for child in facts.get("Plans", ()):
        _walk(child, None if "Subplan Name" in child else node, nodes)


def _short(facts: dict[str, Any]) -> dict[str, Any]:
    kept = (
        "Node Type",
        "Subplan Name",
        "Relation Name",
        "Index Name",
        "Index Cond",
        "Filter",
        "Rows Removed by Filter",
    )
    plan = {name: facts[name] for name in (*kept, "Actual Rows", "Actual Loops") if name in facts}
    return {**plan, "Plans": [_short(child) for child in facts.get("Plans", ())]}


@contextmanager
def schema() -> Iterator[psycopg.Connection[Any]]:
    """Migrate into a schema of the test database; yield a connection of the queue's own to it."""
    with django_connection.cursor() as cursor:
        cursor.execute(f"CREATE SCHEMA {SCHEMA}")
    settings = {**connections["default"].settings_dict}
    settings["OPTIONS"] = {**settings["OPTIONS"], "options": f"-c search_path={SCHEMA},pg_catalog"}
    connections.settings[SCHEMA] = settings
    connections[SCHEMA].connect()
    try:
        call_command("migrate", "pgqueue", database=SCHEMA, verbosity=0, interactive=False)
        connections[SCHEMA].close()
        with connect(SCHEMA, role="test", answer_seconds=120.0) as connection:
            connection.execute("ALTER TABLE pgqueue_job SET (autovacuum_enabled = false)")
            yield connection
    finally:
        connections[SCHEMA].close()
        del connections[SCHEMA]
        del connections.settings[SCHEMA]
        with django_connection.cursor() as cursor:
            cursor.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


@contextmanager
def undone(connection: psycopg.Connection[Any], *, guarded: bool = True) -> Iterator[None]:
    """Run as the worker does, after `guard_transaction.sql` where it does so, and undo."""
    with connection.transaction(force_rollback=True):
        if guarded:
            with transaction(connection, timeout_seconds=60.0):
                yield
        else:
            yield
