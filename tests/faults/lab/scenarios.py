"""Every scenario of the laboratory, in the order of the table."""

from __future__ import annotations

from pathlib import Path

from .faults import (
    CONNECTIONS,
    EVERYTHING,
    children_killed,
    delays,
    drains,
    freezes,
    half_open,
    half_open_role,
    kills,
    nothing,
    pooler_killed,
    refusals,
    resets,
    silence,
    terminations,
)
from .running import ROUNDS, Scenario
from .server_faults import (
    CONNECTION_LIMIT,
    NOLOGIN,
    READ_ONLY,
    RENAMED,
    ROWS,
    SNAPSHOT,
    TABLE,
    WIDENED,
    altered,
    by_chance,
    clock_set,
    connections_taken,
    held,
    raising,
    revoked,
    stopped,
)

SKEW = str(Path(__file__).parent.parent / "skew")
CLOCKS = tuple({"PYTHONPATH": SKEW, "PGQUEUE_TEST_CLOCK_OFFSET": str(hours * 3600)} for hours in (5, -7, 72))
SUPERVISED = ("--processes", "2")

SCENARIOS = [
    Scenario("nothing (the control)", nothing, full_only=True, rounds=1),
    # Processes
    Scenario("SIGKILL at random", kills, workers=3, in_short=True),
    Scenario("SIGSTOP past the lease", freezes, seconds=5, lease_seconds=5, fences=True),
    # A second signal leaves at once, with status 1.
    Scenario("SIGTERM storm", drains, workers=3, statuses=frozenset({1})),
    Scenario("children and supervisors killed", children_killed, options=SUPERVISED),
    # Connections
    Scenario("all backends terminated each second", terminations(EVERYTHING), in_short=True),
    *(
        Scenario(
            f"{name} connection terminated each second",
            terminations(pattern),
            full_only=name != "dispatcher",
            rounds=ROUNDS if name == "dispatcher" else 1,
        )
        for name, pattern in CONNECTIONS.items()
    ),
    Scenario("all connections taken", connections_taken),
    Scenario(
        "half-open: every connection",
        half_open,
        through_proxy=True,
        seconds=2,
        lease_seconds=15,
        settings={"MAX_RUN_SECONDS": 20},
    ),
    *(
        Scenario(
            f"half-open: {name}", half_open_role(role), through_proxy=True, seconds=2, lease_seconds=15, full_only=True
        )
        for name, role in (("dispatcher", "worker"), ("heartbeat", "heartbeat"), ("effects", "effects"))
    ),
    Scenario("every connection reset each second", resets, through_proxy=True, full_only=True),
    Scenario("network down", refusals, through_proxy=True, full_only=True),
    Scenario("2 s each way", delays, through_proxy=True, lease_seconds=30, seconds=10),
    Scenario("silence longer than the lease", silence, through_proxy=True, lease_seconds=5),
    # The server
    Scenario("PostgreSQL restarted: fast", stopped("fast"), full_only=True, recovers_within=5),
    Scenario("PostgreSQL restarted: immediate", stopped("immediate"), recovers_within=5),
    Scenario("PostgreSQL killed", stopped("kill"), full_only=True, recovers_within=5),
    Scenario("PostgreSQL down for 8 s", stopped("fast", down_seconds=8), full_only=True),
    Scenario("snapshot held", held(SNAPSHOT), full_only=True),
    Scenario("100 rows locked", held(ROWS)),
    Scenario("LOCK TABLE", held(TABLE), full_only=True),
    Scenario("read-only server", altered(*READ_ONLY), in_short=True),
    Scenario("UPDATE revoked", revoked("UPDATE", "pgqueue_job")),
    Scenario("INSERT of results revoked", revoked("INSERT", "pgqueue_jobresult, pgqueue_attempt"), full_only=True),
    Scenario("effects revoked", revoked("INSERT, UPDATE", "pgqueue_effect"), full_only=True),
    Scenario("results renamed", altered(*RENAMED), full_only=True),
    Scenario("a column's type changed", altered(*WIDENED), full_only=True, seconds=3),
    Scenario("NOLOGIN, dispatcher cut", altered(*NOLOGIN, cut="dispatcher")),
    Scenario("NOLOGIN, heartbeat cut", altered(*NOLOGIN, cut="heartbeat"), full_only=True),
    Scenario("CONNECTION LIMIT, dispatcher cut", altered(*CONNECTION_LIMIT, cut="dispatcher"), full_only=True),
    Scenario("a trigger of the site raises", raising),
    Scenario("clocks +5 h, -7 h, +3 d, and kills", kills, workers=3, environments=CLOCKS),
    Scenario(
        "PgBouncer (transaction mode) killed",
        pooler_killed,
        pool_mode="transaction",
        settings={"LISTEN": False},
        lease_seconds=10,
    ),
    Scenario("PgBouncer (session mode) killed", pooler_killed, pool_mode="session", lease_seconds=10, full_only=True),
    *(
        Scenario(
            f"the server's clock {offset // 3600:+d} h",
            clock_set(offset),
            server_clock=True,
            fences=True,
            full_only=True,
            rounds=1,
        )
        for offset in (3600, -3600)
    ),
    # Everything
    Scenario(
        "soak: faults by chance",
        by_chance,
        seconds=75,
        workers=3,
        fences=True,
        full_only=True,
        rounds=1,
        recovers_within=60,
    ),
]
